// Resolution of names such as "clearhead/calculate.js" in node, as an import map does in a page: `node --import …/modules.mjs`.
import { existsSync } from "node:fs";
import { registerHooks } from "node:module";

const FOLDERS = ["src/clearhead/explain/live/static", "src/clearhead/explain/course/static", "tests/javascript"].map(
  (folder) => new URL(`../../${folder}/`, import.meta.url),
);

registerHooks({
  resolve(name, context, next) {
    if (!name.startsWith("clearhead/")) return next(name, context);
    const files = FOLDERS.map((folder) => new URL(name.slice("clearhead/".length), folder));
    return { url: String(files.find((file) => existsSync(file))), format: "module", shortCircuit: true };
  },
});
