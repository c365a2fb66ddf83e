// Content of a film, which `clearhead train --film` writes: heads, relations and sentences about a frame.

/**
 * @typedef {{ step: number, sentences: number, exact?: number, maps: Record<string, number[][]>,
 *   accuracy: Record<string, Record<string, [number, number]>> }} Frame maps: weights in thousandths, by head;
 *   accuracy: on two halves of the probe, by relation and by "layer.head"
 * @typedef {{ text: string, translation: string, seed: number, steps: number, frames: Frame[], links: [string, number, number][],
 *   relations: Record<string, string>, stacks: Record<string, { rows: string[], columns: string[] }> }} Film
 *   links: relation, row, column; relations: stack of each relation
 * @typedef {{ relation: string, head: string, row: number }} View what is watched
 */

const SELECTION_HALF = 0; // heads are chosen on one half of the probe and scored on the other, as in Python
const SCORING_HALF = 1;
const FIRST_RELATION = "tense";

/** @param {string} head such as "cross 2.3" */
export const stackOf = (head) => head.split(" ")[0];

/** @param {Film} film @returns {string[]} */
export const headNames = (film) => Object.keys(film.frames[0].maps);

/** Return the relations that the sentence has a link for and the film a head. @param {Film} film */
export function relationNames(film) {
  const stacks = new Set(headNames(film).map(stackOf));
  const linked = new Set(film.links.map(([relation]) => relation));
  return Object.keys(film.relations).filter((relation) => linked.has(relation) && stacks.has(film.relations[relation]));
}

/**
 * Return the accuracy of a head for a relation, if it was measured.
 * @param {Film} film @param {Frame} frame @param {string} relation @param {string} head
 */
export const accuracyOf = (film, frame, relation, head) => halves(film, frame, relation, head)?.[SCORING_HALF];

/**
 * Return both accuracies of a head. A relation is measured in one stack only.
 * @param {Film} film @param {Frame} frame @param {string} relation @param {string} head
 */
const halves = (film, frame, relation, head) =>
  stackOf(head) === film.relations[relation] ? frame.accuracy[relation]?.[head.split(" ")[1]] : undefined;

/** Return the head of a film that finds a relation best in the last frame. @param {Film} film @param {string} relation */
function bestHead(film, relation) {
  const heads = headNames(film).filter((head) => stackOf(head) === film.relations[relation]);
  const last = film.frames[film.frames.length - 1];
  const scores = heads.map((head) => halves(film, last, relation, head)?.[SELECTION_HALF] ?? -1);
  return heads[scores.indexOf(Math.max(...scores))];
}

/** Return what a film shows first. @param {Film} film @returns {View} */
export function firstView(film) {
  const relations = relationNames(film);
  return viewOf(film, relations.includes(FIRST_RELATION) ? FIRST_RELATION : relations[0]);
}

/** Return the best head of a relation and the row of its first link. @param {Film} film @param {string} relation @returns {View} */
export const viewOf = (film, relation) => ({ relation, head: bestHead(film, relation), row: linkOf(film, relation)[1] });

/** @param {Film} film @param {string} relation */
const linkOf = (film, relation) => /** @type {[string, number, number]} */ (film.links.find(([name]) => name === relation));

/** Return the column that the watched row should attend to, if the sentence has a link for it. @param {Film} film @param {View} view */
export function linkedColumn(film, { relation, head, row }) {
  if (film.relations[relation] !== stackOf(head)) return undefined;
  return film.links.find(([name, at]) => name === relation && at === row)?.[2];
}

/** @param {Frame} frame @param {View} view @param {number} column a weight from 0 to 1 */
export const weightOf = (frame, { head, row }, column) => frame.maps[head][row][column] / 1000;

/** Return the column with the largest weight of the watched row. @param {Frame} frame @param {View} view */
function strongestColumn(frame, { head, row }) {
  const weights = frame.maps[head][row];
  return weights.indexOf(Math.max(...weights));
}

/**
 * Say where the watched row looks in a frame.
 * @param {Film} film @param {View} view @param {Frame} frame
 */
export function sentenceOf(film, view, frame) {
  const { rows, columns } = film.stacks[stackOf(view.head)];
  const strongest = strongestColumn(frame, view);
  const linked = linkedColumn(film, view);
  const start = `At step ${frame.step}, “${rows[view.row]}” looks most at “${columns[strongest]}” (${weightOf(frame, view, strongest).toFixed(2)})`;
  return linked === undefined || linked === strongest ? `${start}.` : `${start}; “${columns[linked]}” gets ${weightOf(frame, view, linked).toFixed(2)}.`;
}

/** Say how often the head finds the relation on sentences that no run trains on. @param {Film} film @param {View} view @param {Frame} frame */
export function accuracySentence(film, { relation, head }, frame) {
  const accuracy = accuracyOf(film, frame, relation, head);
  if (accuracy === undefined) return "";
  return `On held-out sentences, this head finds the word for “${relation}” in ${(100 * accuracy).toFixed(0)} % of cases at step ${frame.step}.`;
}
