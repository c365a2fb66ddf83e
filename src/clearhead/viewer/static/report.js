"use strict";
{% include "common.js" %}
{% include "grid.js" %}
{% include "chart.js" %}
{% include "token.js" %}
{% include "head.js" %}
{% include "address.js" %}
{% include "kept.js" %}
{% include "answers.js" %}
