// Random numbers that a seed repeats: one stream for each actor, so that one's haste does not change another's luck.

/** A 32-bit hash of a text (FNV-1a), to seed streams by name. */
function hash(text) {
  let h = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193);
  return h >>> 0;
}

/** The stream named `name` of a seed. */
export function randomOf(seed, name) {
  let state = hash(`${seed}/${name}`);
  const next = () => { // mulberry32: a counter, well mixed
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const self = {
    next,
    /** From lo to hi, both included. */
    int: (lo, hi) => lo + Math.floor(next() * (hi - lo + 1)),
    chance: (p) => next() < p,
    pick: (list) => list[Math.floor(next() * list.length)],
    shuffle: (list) => {
      const all = [...list];
      for (let i = all.length - 1; i > 0; i--) {
        const j = self.int(0, i);
        [all[i], all[j]] = [all[j], all[i]];
      }
      return all;
    },
    /** A key of {key: weight}. */
    weighed: (weights) => {
      const entries = Object.entries(weights);
      let at = next() * entries.reduce((sum, [, weight]) => sum + weight, 0);
      return entries.find(([, weight]) => (at -= weight) < 0)?.[0] ?? entries[0][0];
    },
  };
  return self;
}
