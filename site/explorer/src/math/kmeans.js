// Soft k-means, as models.SoftKMeans: α_ij = softmax_j(-γ |x_i - r_j|²), EM, and where its centres part.

import { average, distance2, eigen, entropy, logSumExp, softmax } from "./mixture.js";

export const assign = (centers, gamma, point) => softmax(centers.map((center) => -gamma * distance2(point, center)));

export const reconstruct = (centers, gamma, point) => average(assign(centers, gamma, point), centers);

export const freeEnergy = (centers, gamma, point) => -logSumExp(centers.map((center) => -gamma * distance2(point, center))) / gamma;

export function distortion(centers, gamma, point) {
  return assign(centers, gamma, point).reduce((sum, w, j) => sum + w * distance2(point, centers[j]), 0);
}

// One step of EM: every centre to the mean of what it is assigned. One that nobody chooses stays.
export function emStep(centers, gamma, points) {
  const counts = centers.map(() => 0);
  const sums = centers.map((center) => center.map(() => 0));
  for (const point of points) {
    const own = assign(centers, gamma, point);
    for (let j = 0; j < own.length; j++) {
      counts[j] += own[j];
      for (let d = 0; d < point.length; d++) sums[j][d] += own[j] * point[d];
    }
  }
  return centers.map((center, j) => (counts[j] > 0 ? sums[j].map((x) => x / counts[j]) : center));
}

export function em(centers, gamma, points, steps, tol = 0) {
  for (let t = 0; t < steps; t++) {
    const next = emStep(centers, gamma, points);
    const moved = Math.max(...next.map((center, j) => Math.sqrt(distance2(center, centers[j]))));
    centers = next;
    if (moved <= tol) break;
  }
  return centers;
}

export function meanOf(points) {
  return points[0].map((_, d) => points.reduce((sum, x) => sum + x[d], 0) / points.length);
}

export function covariance(points) {
  const mean = meanOf(points);
  return mean.map((_, a) => mean.map((_, b) => points.reduce((sum, x) => sum + (x[a] - mean[a]) * (x[b] - mean[b]), 0) / points.length));
}

// 1 / (2 λ) with λ the largest variance: below it all centres meet at the mean.
export const criticalGamma = (points) => 1 / (2 * eigen(covariance(points)).values.at(-1));

// Root of the mean squared distance of the centres from their mean.
export function spread(centers) {
  const mean = meanOf(centers);
  return Math.sqrt(centers.reduce((sum, center) => sum + distance2(center, mean), 0) / centers.length);
}

export const meanEntropy = (centers, gamma, points) => points.reduce((sum, x) => sum + entropy(assign(centers, gamma, x)), 0) / points.length;

// Starts that are far from each other: the point nearest the mean, then always the point farthest from those taken.
export function farthest(points, count) {
  const mean = meanOf(points);
  const taken = [[...points].sort((a, b) => distance2(a, mean) - distance2(b, mean))[0]];
  while (taken.length < count) {
    const apart = points.map((x) => Math.min(...taken.map((y) => distance2(x, y))));
    taken.push(points[apart.indexOf(Math.max(...apart))]);
  }
  return taken.map((x) => [...x]);
}

// The spread of settled centres as γ falls through the values given, each started where the last one ended.
export function anneal(points, count, gammas, steps = 150) {
  let centers = farthest(points, count);
  return [...gammas].sort((a, b) => b - a).map((gamma) => {
    centers = em(centers, gamma, points, steps, 1e-4);
    return [gamma, spread(centers)];
  }).reverse();
}
