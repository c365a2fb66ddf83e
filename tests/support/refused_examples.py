"""Invalid worked examples in TOML, with the expected error messages."""

X = "x = [[0.1, 0.7], [0.5, -0.3], [0.4, 0.9]]\n"
REFUSED = {
    "x = [[1, 2], [3]]": "x: row 2 has 1 cells, but row 1 has 2",
    "x = [1, 2]": "x: row 1 is 1; expected a list of cells",
    "x = []": "x is []; expected a list of rows",
    "x = [[]]": "x: row 1 is []; expected a list of cells",
    "x = [[nan]]": "x: row 1, column 1 is NaN; expected a finite number",
    "x = [[1e-9999999, 1]]": "the exponent of a number is too large",
    "x = [[0e1000001, 1]]": "the exponent of a number is too large",
    "title = 1e99999999999999999999": "the exponent of a number is too large",
    "x = [[1e200], [1]]\n[weights]\nquery = [[1e200]]": "step 'query' overflows; expected smaller numbers",
    "x = [[1e300, 1e300], [1e300, 1e300]]": "overflows; expected smaller numbers",
    "x = [[1e999]]": "x: row 1, column 1 is 1E+999; expected a finite number",
    "x = [[-inf]]": "x: row 1, column 1 is -Infinity; expected a finite number",
    "x = [[true]]": "x: row 1, column 1 is True; expected a number",
    "x = [['_']]": "x: row 1, column 1 is '_'; expected a number",
    "x = [[1999-12-31]]": "x: row 1, column 1 is datetime.date(1999, 12, 31); expected a number",
    "x = 3": "x is 3; expected a list of rows",
    "title = 'a'": "x is missing; expected the input, a list of rows, one for each token",
    X + "tokens = []": "tokens is []; expected a list of 3 texts, one for each row of x",
    X + "tokens = ['a']": "tokens has 1 entries, but x has 3 rows",
    X + "tokens = ['a', 'b', 3]": "tokens: entry 3 is 3; expected text in quotes",
    X + "toknes = ['a']": "the file has an unknown key 'toknes'; did you mean 'tokens'?",
    X + "zzz = 1": "the file has an unknown key 'zzz'; expected one of title, tokens, x, heads",
    X + "title = 3": "title is 3; expected text in quotes",
    X + "heads = 0": "heads is 0; expected a whole number, 1 or more",
    X + "heads = 2.0": "heads is 2.0; expected a whole number, 1 or more",
    X + "heads = 3": "x has 2 columns; expected a multiple of the 3 heads, or weights.query in the file",
    X + "heads = 3\nsplit = 'slice'": 'x has 2 columns; expected a multiple of the 3 heads, because split is "slice"',
    X + "split = 'sliced'": "split is 'sliced'; expected \"project\" or \"slice\"",
    X + "seed = -1": "seed is -1; expected a whole number, 0 or more",
    X + "mask = 'casual'": "mask is 'casual'; did you mean 'causal'?",
    X + "mask = [[true]]": "mask is (1, 1); expected (3, 3), a row and a column for each token",
    X + "mask = [[1, 0, 0]]": "mask: row 1, column 1 is 1; expected all true and false, or all 0 and -inf",
    X + "mask = [[0, false, 0]]": "mask: row 1, column 2 is False; expected all true and false, or all 0 and -inf",
    X + "weights = 3": "weights is 3; expected a table, [weights]",
    X + "[weights]\nquerry = [[1]]": "weights has an unknown key 'querry'; did you mean 'query'?",
    X + "[weights]\nquery = [[1, 2], [3, 4], [5, 6]]":
        "weights.query is (3, 2): X (3, 2) × (3, 2) cannot be multiplied; expected (2, 2)",
    X + "[weights]\nquery = [[1, 2], [3, 4]]\nkey = [[1], [2]]":
        "weights.key is (2, 1), but Q and K must have equally many columns; expected (2, 2)",
    X + "[weights]\noutput = [[1, 2, 3]]":
        "weights.output is (1, 3): the concatenated heads (3, 2) × (1, 3) cannot be multiplied; expected (2, 3)",
    X + "heads = 2\nsplit = 'slice'\n[weights]\nquery = [[[1], [2]], [[1], [2]]]":
        "weights.query is (2, 1): a slice of X (3, 1) × (2, 1) cannot be multiplied; expected (1, 1)",
    X + "heads = 2\n[weights]\nquery = [[1], [2]]":
        "weights.query is a single matrix; expected 2 matrices, one for each head",
    X + "heads = 2\n[weights]\nquery = [[[1], [2]]]":
        "weights.query has 1 entries; expected 2 matrices, one for each head",
    X + "heads = 2\n[weights]\nquery = [[[1], [2]], [[1, 2], [3, 4]]]":
        "weights.query: head 2 is (2, 2), but head 1 is (2, 1)",
    X + "[given]\nkeys = [[1]]": "given has an unknown key 'keys'; did you mean 'key'?",
    X + "[given]\nscores = [[1, 2], [3, 4]]": "given.scores is (2, 2); expected (3, 3), rows by columns",
    X + "[given]\nmasked = [[1, 2, 3], [3, 4, 5], [6, 7, 8]]": "given.masked: this calculation has no such step",
    X + "claims = 3": "claims is 3; expected tables, [[claims]]",
    X + "claims = [3]": "claim 1 is 3; expected a table, [[claims]]",
    X + "[[claims]]\nsum = 'rows'": "claim 1: step is missing; expected one of embedding, positions, input",
    X + "[[claims]]\nstep = 'wieghts'\nsum = 'rows'": "claim 1: step is 'wieghts'; did you mean 'weights'?",
    X + "[[claims]]\nstep = 'weights'":
        "claim 1 (weights): expected one of values, shape, sum, count, or value with cell, found none",
    X + "[[claims]]\nstep = 'weights'\nsum = 'rows'\ncount = 1":
        "claim 1 (weights): expected one of values, shape, sum, count, or value with cell, found sum, count",
    X + "[[claims]]\nstep = 'weights'\nsum = 'all'":
        "claim 1 (weights): sum is 'all'; expected \"rows\" or \"columns\"",
    X + "[[claims]]\nstep = 'weights'\ncount = 1.5":
        "claim 1 (weights): count is 1.5; expected a whole number, 0 or more",
    X + "[[claims]]\nstep = 'weights'\nshape = [3]": "claim 1 (weights): shape is [3]; expected two whole numbers",
    X + "[[claims]]\nstep = 'weights'\nvalues = [[1], [1, 2]]":
        "claim 1 (weights): values: row 2 has 2 cells, but row 1 has 1",
    X + "[[claims]]\nstep = 'weights'\nvalues = [['x']]":
        "claim 1 (weights): values: row 1, column 1 is 'x'; expected a number, or \"_\" for a blank",
    X + "[[claims]]\nstep = 'weights'\nvalues = [[inf]]":
        "claim 1 (weights): values: row 1, column 1 is Infinity; expected a finite number or -inf",
    X + "[[claims]]\nstep = 'weights'\nhead = 2\nsum = 'rows'":
        "claim 1 (weights): head is 2; expected a whole number from 1 to 1",
    X + "[[claims]]\nstep = 'concat'\nhead = 1\nshape = [1, 1]":
        "claim 1 (concat): head is 1, but there is one concat for all heads; leave head out",
    X + "heads = 2\n[[claims]]\nstep = 'query'\nvalues = [[1]]":
        "claim 1 (query): head is missing; expected a whole number from 1 to 2",
    X + "[[claims]]\nstep = 'query'\nvalues = [[1]]\ntolerance = -1":
        "claim 1 (query): tolerance is -1; expected a number, 0 or more",
    X + "[[claims]]\nstep = 'query'\nvalue = [[1]]":
        "claim 1 (query) has value, but no cell; expected cell = [row, column], or values for a whole matrix",
    X + "heads = 2\n[weights]\noutput = [[1]]\nquery = [[1, 2], [3, 4], [5, 6]]":
        "weights.query is a single matrix; expected 2 matrices, one for each head",
    X + "dropout = 0.1": "the file has the key 'dropout'; leave it out: dropout is random, so no text can print it",
    X + "scale = 0": "scale is 0; expected a number above 0, or \"none\" (d_k = 64 divides by √64)",
    X + "scale = '1/sqrt(64)'":
        "scale is '1/sqrt(64)'; expected a number above 0, or \"none\" (d_k = 64 divides by √64)",
    X + "scale = inf": "scale is Infinity; expected a number above 0",
    X + "scale = true": "scale is True; expected a number above 0",
    X + "scale = 0.1\nd_k = 64": "scale and d_k are both given; expected one of them (d_k = 64 divides by √64)",
    X + "d_k = 0": "d_k is 0; expected a whole number, 1 or more",
    X + "d_k = 64.0": "d_k is 64.0; expected a whole number, 1 or more",
    X + "kv_heads = 2": "kv_heads is 2; expected a divisor of heads, which is 1",
    X + "heads = 2\nkv_heads = 0": "kv_heads is 0; expected a whole number, 1 or more",
    X + "heads = 2\nkv_heads = 1\n[weights]\nkey = [[[1], [2]], [[1], [2]]]":
        "weights.key has 2 entries; expected 1 matrix, one for each key head",
    "heads = 4\nkv_heads = 2\nx = [[1, 2, 3, 4]]\n[weights]\nkey = [[1], [2], [3], [4]]":
        "weights.key is a single matrix; expected 2 matrices, one for each key head",
    X + "memory_tokens = ['a']": "memory_tokens is given without memory; expected memory, a list of rows",
    X + "memory = [[1, 2], [3]]": "memory: row 2 has 1 cells, but row 1 has 2",
    X + "memory = [[1, 2]]\nmemory_tokens = ['a', 'b']": "memory_tokens has 2 entries, but memory has 1 rows",
    X + "memory = [[1, 2]]\nmask = 'causal'":
        'mask is "causal", but memory is another text; expected "none" or a matrix',
    X + "memory = [[1, 2]]\nmask = [[true]]":
        "mask is (1, 1); expected (3, 1), a row for each token and a column for each row of memory",
    X + "memory = [[1, 2, 3]]\n[weights]\nkey = [[1, 2], [3, 4]]":
        "weights.key is (2, 2): Z (1, 3) × (2, 2) cannot be multiplied; expected (3, 2)",
    X + "heads = 2\nsplit = 'slice'\nmemory = [[1, 2, 3]]":
        'memory has 3 columns; expected a multiple of the 2 key heads, because split is "slice"',
    X + "positions = 'sinus'": "positions is 'sinus'; did you mean 'sinusoidal'?",
    X + "positions = 'learned'": "positions is 'learned'; expected one of none, sinusoidal, rotary, rotary-interleaved",
    X + "positions = 3": "positions is 3; expected a list of rows",
    X + "positions = [[1, 2]]": "positions is (1, 2); expected (3, 2), a row for each token",
    X + "heads = 2\npositions = 'rotary'":
        "positions is 'rotary', but Q and K have 1 columns; expected an even number, as columns are rotated in pairs",
    X + "memory = [[1, 2]]\npositions = 'rotary'":
        "positions is 'rotary', but memory is another text; leave one of them out",
    X + "[embedding]\na = [1, 2]": "x and embedding are both given; expected one of them",
    "embedding = 3": "embedding is 3; expected a table, [embedding]",
    "tokens = ['a']\n[embedding]": "embedding is empty; expected a row for each token",
    "[embedding]\na = [1, 2]": "tokens is None; expected a list of texts, the tokens to look up in embedding",
    "tokens = ['a', 'dgo']\n[embedding]\na = [1, 2]\ndog = [3, 4]":
        "tokens: entry 2 is 'dgo', which embedding lacks; did you mean 'dog'?",
    "tokens = ['a', 3]\n[embedding]\na = [1, 2]": "tokens: entry 2 is 3; expected text in quotes",
    "tokens = ['a']\n[embedding]\na = [1, 2]\nb = [3]": "embedding: row 2 has 1 cells, but row 1 has 2",
    X + "[biases]\nquerry = [1]": "biases has an unknown key 'querry'; did you mean 'query'?",
    X + "[biases]\nquery = 3": "biases.query is 3; expected a list of numbers, one for each column",
    X + "[biases]\nquery = [1]": "biases.query has 1 numbers; expected 2, because weights.query has 2 columns",
    X + "heads = 2\n[biases]\nquery = [1, 2]": "biases.query is a single list; expected 2 lists, one for each head",
    X + "[biases]\nquery = ['a', 2]": "biases.query: row 1, column 1 is 'a'; expected a number",
    X + "[given]\npositions = [[1]]": "given has an unknown key 'positions'",
    X + "scale = 'none'\n[given]\nscaled = [[1, 2, 3], [3, 4, 5], [6, 7, 8]]":
        "given.scaled: this calculation has no such step",
    X + "[[claims]]\nstep = 'softmax'\nsum = 'rows'": "claim 1: step is 'softmax'; did you mean 'weights'?",
    X + "[[claims]]\nstep = 'Q'\nsum = 'rows'": "claim 1: step is 'Q'; did you mean 'query'?",
    X + "[[claims]]\nstep = 'context'\nsum = 'rows'": "claim 1: step is 'context'; did you mean 'head_output'?",
    X + "[[claims]]\nstep = 'query'\nrow = 4\nvalues = [1, 2]":
        "claim 1 (query): row is 4; expected a whole number from 1 to 3",
    X + "[[claims]]\nstep = 'query'\ncolumn = 0\nvalues = [1, 2, 3]":
        "claim 1 (query): column is 0; expected a whole number from 1 to 2",
    X + "[[claims]]\nstep = 'masked'\nrow = 0\nvalues = [1]":
        "claim 1 (masked): row is 0; expected a whole number, 1 or more",
    X + "[[claims]]\nstep = 'query'\nrow = 1\nvalues = [1, 2, 3]":
        "claim 1 (query): values has 3 numbers; expected 2, the length of the row",
    X + "[[claims]]\nstep = 'query'\ncolumn = 1\nvalues = [1, 2]":
        "claim 1 (query): values has 2 numbers; expected 3, the length of the column",
    X + "[[claims]]\nstep = 'query'\nrow = 1\nvalues = [[1, 2]]":
        "claim 1 (query): values is [[1, 2]]; expected a list of numbers, because row is given",
    X + "[[claims]]\nstep = 'query'\nrow = 1\ncolumn = 1\nvalues = [1]":
        "claim 1 (query) has row and column; expected at most one of row, column, cell; use cell = [row, column]",
    X + "[[claims]]\nstep = 'query'\nrow = 1\nshape = [3, 2]":
        "claim 1 (query) has row; expected values, the list of its numbers, or sum, a number",
    X + "[[claims]]\nstep = 'query'\nrow = 1\nsum = 'rows'":
        "claim 1 (query) has row; expected values, the list of its numbers, or sum, a number",
    X + "[[claims]]\nstep = 'query'\ncell = [1, 1]":
        "claim 1 (query) has cell, but no value; expected value, the number in that cell",
    X + "[[claims]]\nstep = 'query'\ncell = 3\nvalue = 1":
        "claim 1 (query): cell is 3; expected two whole numbers, [row, column]",
    X + "[[claims]]\nstep = 'query'\ncell = [1, 3]\nvalue = 1":
        "claim 1 (query): cell: column is 3; expected a whole number from 1 to 2",
    X + "[[claims]]\nstep = 'query'\ncell = [1, 1]\nvalue = '_'": "claim 1 (query): value is '_'; expected a number",
    X + "[[claims]]\nstep = 'query'\ncell = [1, 1]\nvalue = 1\nvalues = [[1]]":
        "claim 1 (query) has value and values; expected one of them",
    X + "[[claims]]\nstep = 'query'\nsum = true":
        "claim 1 (query): sum is True; expected \"rows\" or \"columns\", to claim that they sum to 1, or a number",
    X + "heads = 2\n[[claims]]\nstep = 'query'\nsum = 1.0":
        "claim 1 (query): head is missing; expected a whole number from 1 to 2",
    X + "heads = 2\nkv_heads = 1\n[[claims]]\nstep = 'key'\nhead = 2\nvalues = [[1]]":
        "claim 1 (key): head is 2; expected a whole number from 1 to 1",
    X + "[[claims]]\nstep = 'query'\nvalues = [[1]]\ndigits = 1.5":
        "claim 1 (query): digits is 1.5; expected a whole number from 0 to 15",
    X + "[[claims]]\nstep = 'query'\nvalues = [[1]]\ndigits = 1\ntolerance = 1":
        "claim 1 (query) has both digits and tolerance; expected one of them",
    X + "[[claims]]\nstep = 'query'\nshape = [3, 2]\ndigits = 1":
        "claim 1 (query) has digits and shape, which is a whole number; leave digits out",
}  # fmt: skip
