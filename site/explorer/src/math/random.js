// Seeded random numbers: xoshiro128++ started by splitmix32. The same seed gives the same draws in Node and in every browser.

const MIX = 0x9e3779b9;

function splitmix(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + MIX) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  };
}

const turned = (x, k) => ((x << k) | (x >>> (32 - k))) >>> 0;

// A generator: bits() in 0..2^32-1, uniform() in (0, 1), normal(), integer(n) in 0..n-1, categorical(probabilities).
export function generator(seed) {
  const next = splitmix(seed);
  const s = [next(), next(), next(), next()];
  const bits = () => {
    const result = (turned((s[0] + s[3]) >>> 0, 7) + s[0]) >>> 0;
    const t = (s[1] << 9) >>> 0;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] = (s[2] ^ t) >>> 0;
    s[3] = turned(s[3] >>> 0, 11);
    return result;
  };
  const uniform = () => ((bits() >>> 5) * 67108864 + (bits() >>> 6) + 0.5) / 9007199254740992;
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  const integer = (n) => Math.min(n - 1, Math.floor(n * uniform()));
  const categorical = (probabilities) => {
    let left = uniform();
    for (let j = 0; j < probabilities.length - 1; j++) {
      left -= probabilities[j];
      if (left < 0) return j;
    }
    return probabilities.length - 1;
  };
  return { bits, uniform, normal, integer, categorical };
}
