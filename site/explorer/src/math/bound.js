// The evidence lower bound of a guide over units, and what it leaves: the divergence from the posterior.

// Σ_j q_j (log p(x, unit=j) - log q_j), for one observation.
export function elbo(logJoint, guide) {
  let sum = 0;
  for (let j = 0; j < guide.length; j++) if (guide[j] > 0) sum += guide[j] * (logJoint[j] - Math.log(guide[j]));
  return sum;
}

// KL(q | p) from log p: a probability that underflows has a logarithm.
export function divergence(q, logP) {
  let sum = 0;
  for (let j = 0; j < q.length; j++) if (q[j] > 0) sum += q[j] * (Math.log(q[j]) - logP[j]);
  return sum;
}

// The triangle of three probabilities with corners in the plane, and back; points outside go to the nearest edge's side.
const HIGH = Math.sqrt(3) / 2;
export const CORNERS = [[0, 0], [1, 0], [0.5, HIGH]];

export const placeOf = (p) => [p[1] + 0.5 * p[2], HIGH * p[2]];

export function sharesAt([x, y]) {
  const third = y / HIGH;
  const raw = [1 - x - 0.5 * third, x - 0.5 * third, third].map((z) => Math.max(0, z));
  const sum = raw[0] + raw[1] + raw[2];
  return raw.map((z) => z / sum);
}
