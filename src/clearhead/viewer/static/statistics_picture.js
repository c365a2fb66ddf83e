// One statistic of every head, as a picture.

import { element, reveal } from "clearhead/dom.js";
import { headId, statisticText } from "clearhead/format.js";
import { allHeads, thumbnailOf } from "clearhead/grid.js";
import { headPicture, pictureLegend } from "clearhead/head_picture.js";
import { keepChoice, setOptions } from "clearhead/selects.js";
import { on, openHead, state } from "clearhead/state.js";

const DELAY = 250; // milliseconds, in which several settings change
const drawPicture = headPicture(element("statistics-picture"));
/** Timer of a pending update. @type {ReturnType<typeof setTimeout> | undefined} */
let pending;

function fillChoices() {
  const measured = (/** @type {string} */ name) => [...allHeads()].some(({ payload }) => typeof payload?.statistics[name] === "number");
  setOptions(element("statistic"), state.model.columns.filter(([name]) => measured(name)).map(([name, heading]) => [name, heading]));
}

function showStatistic() {
  fillChoices();
  const statistic = element("statistic").value;
  const column = state.model.columns.find(([name]) => name === statistic);
  const values = [...allHeads()].flatMap(({ payload }) => payload?.statistics[statistic] ?? []);
  if (!column || !values.length) return;
  const low = Math.min(0, ...values);
  const high = statistic === "entropy" || statistic === "distance" || statistic === "offset" ? Math.max(low + 1e-9, ...values) : 1;
  element("statistic-note").textContent = `Mean over all queries of the ${column[2]}.`;
  drawPicture(state.model.stacks.map(({ name }) => name), (head) => {
    const value = thumbnailOf(headId(head))?.statistics[statistic];
    if (typeof value !== "number") return undefined;
    return {
      share: (value - low) / (high - low),
      text: statisticText(statistic, value),
      meaning: `${column[1]} ${statisticText(statistic, value, true)}`,
      open: () => {
        reveal("head");
        openHead(headId(head));
      },
    };
  });
  pictureLegend(element("statistic-legend"), statisticText(statistic, low), statisticText(statistic, high, true));
}

function showSoon() {
  pending ??= setTimeout(() => {
    pending = undefined;
    if (state.model) showStatistic(); // settings of the address are announced before the model arrives
  }, DELAY);
}

keepChoice("statistic", () => state.model && showStatistic());
on("statistics", showStatistic);
for (const event of ["head", "settings"]) on(event, showSoon);
