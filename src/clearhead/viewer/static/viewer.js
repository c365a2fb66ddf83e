"use strict";
{% include "common.js" %}
{% include "grid.js" %}
{% include "chart.js" %}
{% include "token.js" %}
{% include "calculation.js" %}
{% include "head.js" %}
{% include "address.js" %}
{% include "page.js" %}
