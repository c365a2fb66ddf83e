// Tokens in one line of text: words, or several words in quotes, where a backslash stands before a quote or a backslash.

/** Return the tokens of a text. @param {string} text @returns {string[]} */
export const readTokens = (text) =>
  [...text.matchAll(/"((?:[^"\\]|\\[^])+)"|\S+/gu)].map(([whole, quoted]) => quoted?.replace(/\\(["\\])/g, "$1") ?? whole);

/** Return the text that `readTokens` reads as some tokens. @param {string[]} tokens @returns {string} */
export const tokensText = (tokens) =>
  tokens.map((token) => (/[\s"]/u.test(token) ? `"${token.replace(/["\\]/g, "\\$&")}"` : token)).join(" ");
