// The Japanese font: canvases are drawn again when the page has loaded it, and saved pictures contain the glyphs they use.

import { announce } from "clearhead/state.js";

const JAPANESE = /[\u3000-\uffff]/u;

document.fonts.addEventListener("loadingdone", () => announce("fonts"));

/** Add the glyphs of its Japanese texts to a picture, which is drawn without the fonts of this page. @param {SVGElement} picture */
export async function embedFont(picture) {
  const text = picture.textContent ?? "";
  if (!JAPANESE.test(text)) return;
  const rule = [...document.styleSheets].flatMap(({ cssRules }) => [...cssRules]).find((each) => each instanceof CSSFontFaceRule);
  if (!rule) return;
  const isEmbedded = rule.cssText.includes('url("data:'); // a report has glyphs for its tokens only
  const style = isEmbedded ? rule.cssText : rule.cssText.replace(/url\([^)]*\)/, `url("${await subsetUrl(text)}")`);
  const element = document.createElementNS("http://www.w3.org/2000/svg", "style");
  element.textContent = style;
  picture.prepend(element);
  // as a later choice, it would load when the picture is painted, after it has been decoded
  picture.setAttribute("font-family", `${rule.style.getPropertyValue("font-family")}, ${picture.getAttribute("font-family")}`);
}

/** Return a font with the glyphs of a text as a data URL. @param {string} text @returns {Promise<string>} */
async function subsetUrl(text) {
  const answer = await fetch(`/font?text=${encodeURIComponent([...new Set(text)].join(""))}`);
  if (!answer.ok) throw new Error(await answer.text());
  const font = await answer.blob();
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(font);
  });
}
