// Types of the live page: a layer, its calculation, and every matrix of it. `_layer_json.py` writes a Layer in Python.

/** Path of the cells of a matrix in a Layer, such as ["weights", "query", 0]. */
type CellPath = (string | number)[];
type StepOperation =
  | "input" | "lookup" | "sum" | "given" | "slice" | "product" | "scaled" | "masked" | "softmax" | "concat" | "copy";

interface Mask {
  kind: "none" | "causal" | "padding" | "custom";
  padding: number; // number of last keys that "padding" hides
  hidden: boolean[][] | null; // [query][key], for "custom"
}

interface Scaling {
  on: boolean;
  scale: number | null; // factor of the scores; null: 1/√d_k
  d_k?: number | null; // divides the scores by √d_k, if the text states another width than that of Q
}

/** Embedding table W_E, which the rows of the tokens are looked up in. */
interface Embedding {
  vocabulary: string[];
  values: number[][]; // [word][column]
}

/** Positions P, which are added to the rows of the tokens: X = E + P. */
interface Positions {
  on: boolean;
  values: number[][]; // [token][column]
  sinusoidal: boolean; // sines and cosines, not edited
}

/** Everything that a calculation is computed from. */
interface Layer {
  tokens: string[];
  x: number[][]; // [token][column]; without positions; equal to the rows of `embedding`, if there is one
  memory: { tokens: string[]; x: number[][] } | null; // input of keys and values in cross-attention
  heads: number;
  kv_heads: number; // a divisor of `heads`: each key head is shared by heads / kv_heads query heads
  split: "slice" | "project";
  weights: { query: number[][][]; key: number[][][]; value: number[][][]; output: number[][] }; // [head][row][column]
  biases: { query?: number[][]; key?: number[][]; value?: number[][]; output?: number[] }; // [head][column]
  mask: Mask;
  scaling: Scaling;
  softmax: "rows" | "columns";
  use_output: boolean; // false: Y = C, without W_O and b_O
  embedding?: Embedding | null;
  positions?: Positions | null;
  given?: Record<string, number[][]>; // Q, K or V that the text gives, by id, such as "key-1"; not computed
}

/** A matrix of the calculation. */
interface Matrix {
  id: string; // of a step: "input", "weights-2"; of an input: "W_Q-1", "b_Q-1", "W_O", "b_O", "W_E", "M"; heads from 1
  symbol: string;
  kind: "input" | "weight" | "mask" | "step";
  values: number[][];
  rows: string[]; // labels
  columns: string[];
  path: CellPath | null; // for setCell, if the cells can be edited
  hidden: boolean[][] | null; // weights that are 0 because of the mask
}

/** A matrix that a step reads. Cell (i, j) of the result depends on row i, column j, cell (i, j) or all of its cells. */
interface StepOperand {
  id: string;
  marks: "row" | "column" | "cell" | "all";
  shift: number; // added to j
  transposed: boolean; // `marks` counts rows and columns of the transposed matrix, as in Q Kᵀ
  columns?: [first: number, end: number]; // the step reads only these columns
}

/** A matrix that is computed, or an input that Python shows as a step: X, Z, E and P. */
interface Step extends Matrix {
  name: string; // as STEP_NAMES in explain/steps.py
  head: number | null; // counted from 0; the key head of key and value
  formula: string;
  shapes: string;
  how: StepOperation;
  multiply_adds: number;
  operands: StepOperand[];
  scaling?: string; // of the step "scaled", such as "/ √2"
}

interface Calculation {
  layer: Layer;
  matrices: Map<string, Matrix>; // all of them, with the steps
  steps: Step[]; // in order
}
