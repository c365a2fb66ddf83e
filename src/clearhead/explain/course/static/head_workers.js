// Heads computed at the same time on several cores, each by a worker of the browser.

import { multiply } from "clearhead/head_products.js";

/** @typedef {import("clearhead/head_products.js").Problem} Problem */

const CODE = `const multiply = ${multiply};
let problem;
onmessage = ({ data }) => {
  if (data) problem = data;
  const { x, weights, tokens, width, columns } = problem;
  postMessage(data ? null : weights.map((matrix) => multiply(x, matrix, tokens, width, columns)));
};`;

/** Return the number of workers for a number of heads: one for each core, but not more than heads. @param {number} heads */
export const workerCount = (heads) => Math.min(heads, Math.max(1, navigator.hardwareConcurrency || 1));

/**
 * Start workers, each with the weights of some heads. The promise is rejected in a browser without workers.
 * @param {Problem} problem
 * @param {number} count
 * @returns {Promise<{ run: () => Promise<Float32Array[]>, stop: () => void }>}
 */
export async function startWorkers({ sizes: { tokens, width, heads }, x, weights }, count) {
  const workers = Array.from({ length: count }, () => new Worker(`data:text/javascript;base64,${btoa(CODE)}`));
  /** @type {(worker: Worker, message: object | null) => Promise<Float32Array[]>} */
  const ask = (worker, message) =>
    new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = () => reject(new Error("a worker of the browser failed"));
      worker.postMessage(message);
    });
  const stop = () => workers.forEach((worker) => worker.terminate());
  // whole heads, in order: three matrices each
  const bounds = Array.from({ length: count + 1 }, (_, index) => 3 * Math.round((index * heads) / count));
  try {
    await Promise.all(workers.map((worker, index) => ask(worker, { x, weights: weights.slice(bounds[index], bounds[index + 1]), tokens, width, columns: width / heads })));
  } catch (error) {
    stop();
    throw error;
  }
  return { run: async () => (await Promise.all(workers.map((worker) => ask(worker, null)))).flat(), stop };
}
