// The live page: requests to the server through Bokeh's WebSocket, and their answers.

import "clearhead/bars.js";
import "clearhead/borders.js";
import "clearhead/calculation.js";
import "clearhead/compare.js";
import "clearhead/export.js";
import "clearhead/find.js";
import "clearhead/gestures.js";
import "clearhead/head.js";
import "clearhead/links.js";
import "clearhead/media.js";
import "clearhead/model_output.js";
import "clearhead/pointer.js";
import "clearhead/readout.js";
import "clearhead/save_report.js";
import "clearhead/skip_links.js";
import "clearhead/statistics_picture.js";
import "clearhead/statistics_table.js";
import "clearhead/token_picture.js";
import "clearhead/table.js";
import "clearhead/term_help.js";
import "clearhead/text_form.js";
import "clearhead/token.js";
import "clearhead/word_matches.js";
import "clearhead/toolbars.js";
import "clearhead/word_strip.js";
import "clearhead/words.js";
import { fromAddress, restoreSettings } from "clearhead/address.js";
import { paintTheme } from "clearhead/controls.js";
import { element } from "clearhead/dom.js";
import { setColors } from "clearhead/grid.js";
import { whenReady } from "clearhead/heatmap.js";
import { announce, ask, connectRequests, settings, state } from "clearhead/state.js";

// answers that arrive before a head is selected; all others describe one
const EARLY = ["model", "thumbnails", "head", "status"];

whenReady((bokehDocument) => {
  const channel = bokehDocument.get_model_by_name("page_state");
  let count = 0; // makes equal requests different, because Bokeh sends changes only
  connectRequests((kind, payload) => (channel.ask = { kind, asked: ++count, ...payload }));
  for (const name of /** @type {(keyof typeof state)[]} */ (Object.keys(state))) {
    channel.properties[name].change.connect(() => {
      state[name] = channel[name];
      if (channel[name] !== null && (EARLY.includes(name) || state.head)) announce(name);
    });
  }
  bokehDocument.on_event("connection_lost", () => {
    element("progress").textContent = "";
    Object.assign(element("status"), { className: "error", textContent: "clearhead view has stopped; start it again and open its new link" });
  });
  announce("ready");
  setColors();
  restoreSettings();
  ask("settings", settings);
  ask("go", fromAddress());
  paintTheme(); // last, because the colors of the figures take the server as long as finding the first head
});
