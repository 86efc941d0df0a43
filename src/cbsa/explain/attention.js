// Rows of attention, computed from the stored factors: nothing N×N is stored or formed.

// Row `query` of A Aᵀ over all tokens: Σ_r B[r, query]·A[r, :], with A (m×N) of one head. B, by which tokens take
// representatives up, is A itself, unless the layer has an option that makes it another.
function extractionRow({ weights, broadcast }, head, query) {
  const { levels, scale, shape: [, m, tokens] } = weights;
  const row = new Float64Array(tokens);
  for (let r = head * m; r < (head + 1) * m; r++) {
    const start = r * tokens;
    const factor = broadcast.scale[r] * SHARES[broadcast.levels[start + query]] * scale[r];
    if (factor === 0) continue;
    for (let n = 0; n < tokens; n++) row[n] += factor * SHARES[levels[start + n]];
  }
  return row;
}

// Products of one token's query with all keys of a head.
function products(queries, keys, head, query) {
  const [, tokens, width] = keys.shape;
  const unit = (queries.scale[head] / 32767) * (keys.scale[head] / 32767);
  const from = (head * tokens + query) * width;
  const row = new Float64Array(tokens);
  for (let n = 0; n < tokens; n++) {
    const to = (head * tokens + n) * width;
    let sum = 0;
    for (let d = 0; d < width; d++) sum += queries.levels[from + d] * keys.levels[to + d];
    row[n] = sum * unit;
  }
  return row;
}

function softmaxRow(layer, head, query) {
  const row = products(layer.queries, layer.keys, head, query);
  let largest = -Infinity;
  for (const score of row) largest = Math.max(largest, score);
  let total = 0;
  for (let n = 0; n < row.length; n++) {
    row[n] = Math.exp(layer.temperature * (row[n] - largest));
    total += row[n];
  }
  return row.map((value) => value / total);
}

function kernelRow(layer, head, query) {
  const row = products(layer.queries, layer.keys, head, query);
  const total = row.reduce((sum, value) => sum + value, 0);
  return total > 0 ? row.map((value) => value / total) : row;
}

// TSSA: the share of each token in a head. It is the same for all queries.
function membershipRow({ share }, head) {
  const tokens = share.shape[1];
  return Float64Array.from(
    share.levels.subarray(head * tokens, (head + 1) * tokens),
    (level) => (level / 32767) * share.scale[head],
  );
}

// The row of one token in a layer and head over all tokens, patches last; null where a layer has no such thing.
function rowOf(layer, head, query) {
  switch (layer.kind) {
    case "extraction": return extractionRow(layer, head, query);
    case "softmax": return softmaxRow(layer, head, query);
    case "kernel": return kernelRow(layer, head, query);
    case "membership": return membershipRow(layer, head);
    default: return null;
  }
}

// A row as a map over the patches, which come after `prefix` other tokens, that sums to 1; memberships stay shares.
function mapOf(layer, head, query, prefix) {
  const row = rowOf(layer, head, query);
  if (row === null) return null;
  const patches = row.subarray(prefix);
  if (layer.kind === "membership") return patches;
  const total = patches.reduce((sum, value) => sum + value, 0);
  return total > 0 ? patches.map((value) => value / total) : patches;
}

// Maps of one token by layer and head, and their mean over heads; kept until another token is asked for.
function mapsOf(view, query) {
  if (view.maps?.query === query) return view.maps;
  const maps = view.layers.map((layer) => {
    const heads = Array.from({ length: view.heads }, (_, head) => mapOf(layer, head, query, view.prefix));
    const mean = heads[0] === null || layer.kind === "membership" ? null : meanOf(heads); // shares add up to 1
    return { heads, mean };
  });
  view.maps = { query, layers: maps };
  return view.maps;
}

function meanOf(arrays) {
  return arrays[0].map((_, i) => arrays.reduce((sum, array) => sum + array[i], 0) / arrays.length);
}

// The map that a choice of layer and head stands for; head -1 is the mean.
function chosenMap(view, query, layer, head) {
  const maps = mapsOf(view, query).layers[layer];
  return head < 0 ? maps.mean : maps.heads[Math.min(head, view.heads - 1)];
}

// Which representative gathers each token most, by token.
function regionsOf({ levels, scale, shape }, head) {
  const [, m, tokens] = shape;
  const best = new Float64Array(tokens).fill(-1);
  const region = new Uint16Array(tokens);
  for (let r = 0; r < m; r++) {
    const start = (head * m + r) * tokens;
    for (let n = 0; n < tokens; n++) {
      const weight = scale[head * m + r] * SHARES[levels[start + n]];
      if (weight > best[n]) {
        best[n] = weight;
        region[n] = r;
      }
    }
  }
  return region;
}

// What one representative gathers from each token.
function gatheredBy({ levels, scale, shape }, head, representative) {
  const [, m, tokens] = shape;
  const row = head * m + representative;
  const start = row * tokens;
  return Float64Array.from(levels.subarray(start, start + tokens), (level) => scale[row] * SHARES[level]);
}
