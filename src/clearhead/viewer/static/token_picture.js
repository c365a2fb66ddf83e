// Where one token looks, in every head: the top key of the selected query, or its weight on the selected key.

import { element, literal } from "clearhead/dom.js";
import { headId, weightText } from "clearhead/format.js";
import { measure } from "clearhead/heatmap.js";
import { headPicture, pictureLegend } from "clearhead/head_picture.js";
import { keepChoice } from "clearhead/selects.js";
import { ask, on, settings, state } from "clearhead/state.js";
import { openCell } from "clearhead/token_chip.js";

const drawPicture = headPicture(element("token-picture"));

/** Ask for the picture of the selected cell. */
function askPicture() {
  if (state.cell) ask("picture", { query: state.cell.query, key: state.cell.key, hide: settings.hide });
}

function showPicture() {
  const { picture } = state;
  if (!picture || picture.stack !== state.head?.stack) return;
  const isTop = element("picture-key").value === "top";
  const { query, token, key, key_token, hide, weighted } = picture;
  const end = ` in every head${isTop && hide ? ", without the sink" : ""}${weighted ? ", value-weighted" : ""}`;
  const heading = isTop ? ["The top key of ", literal(token), end] : ["The weight of ", literal(token), " on ", literal(key_token), end];
  element("picture-heading").replaceChildren(...heading);
  drawPicture([picture.stack], (head) => {
    const top = picture.layers[head.layer]?.[head.head];
    const shown = isTop ? top : /** @type {TopToken} */ ([key, key_token, picture.weights[head.layer][head.head]]);
    if (!shown) return undefined;
    const [index, text, weight] = shown;
    return {
      share: weight,
      text: isTop ? text : weightText(weight),
      meaning: `${text} (key ${index.toLocaleString("en")}): ${measure(weighted)} ${weightText(weight)}`,
      open: () => openCell(headId(head), query, index),
    };
  });
  pictureLegend(element("picture-legend"), `${measure(weighted)} 0`, "1");
}

keepChoice("picture-key", showPicture);
on("cell", askPicture);
on("settings", () => (askPicture(), showPicture()));
for (const event of ["picture", "head"]) on(event, showPicture);
