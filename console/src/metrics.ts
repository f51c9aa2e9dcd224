// Reads the metrics' text, and computes rates and latencies between two readings.

/** Counts of one model at one time. buckets: upper limits in seconds -> cumulative count of successes. */
export interface Counts {
  requests: number;
  failures: number;
  buckets: Map<number, number>;
}

export interface Reading {
  atMs: number;
  models: Map<string, Counts>;
}

/** Rates of one model between two readings. p50Ms, p99Ms: null without a success. */
export interface Rates {
  perSecond: number;
  failuresPerSecond: number;
  p50Ms: number | null;
  p99Ms: number | null;
}

const LINE = /^(embedding_server_requests_total|embedding_server_request_seconds_bucket)\{(.*)\} (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Reads the counts of each model from Prometheus text. */
export function readMetrics(text: string, atMs: number): Reading {
  const models = new Map<string, Counts>();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(LABEL)].map((one) => [one[1], one[2]]));
    const name = labels["model"] ?? "";
    const counts: Counts = models.get(name) ?? { requests: 0, failures: 0, buckets: new Map() };
    models.set(name, counts);
    const value = Number(found[3]);
    if (found[1] === "embedding_server_requests_total") {
      counts.requests += value;
      if (labels["code"] !== "OK") counts.failures += value;
    } else {
      const limit = labels["le"] === "+Inf" ? Infinity : Number(labels["le"]);
      counts.buckets.set(limit, (counts.buckets.get(limit) ?? 0) + value);
    }
  }
  return { atMs, models };
}

/** Returns the limit of the bucket that holds a share of the durations between two readings, in ms. */
function quantileMs(before: Counts | undefined, after: Counts, share: number): number | null {
  const limits = [...after.buckets.keys()].sort((a, b) => a - b);
  const counts = limits.map((limit) => (after.buckets.get(limit) ?? 0) - (before?.buckets.get(limit) ?? 0));
  const total = counts[counts.length - 1] ?? 0;
  if (total <= 0) return null;
  const at = counts.findIndex((count) => count >= share * total);
  const limit = limits[at] ?? Infinity;
  const finite = Number.isFinite(limit) ? limit : (limits[limits.length - 2] ?? 0);
  return finite * 1000;
}

/** Computes each model's rates between two readings. Counts that fell, as after a restart, count from zero. */
export function ratesBetween(before: Reading, after: Reading): Map<string, Rates> {
  const seconds = Math.max((after.atMs - before.atMs) / 1000, 0.001);
  const rates = new Map<string, Rates>();
  for (const [name, counts] of after.models) {
    const seen = before.models.get(name);
    const old = seen && seen.requests <= counts.requests ? seen : undefined;
    rates.set(name, {
      perSecond: (counts.requests - (old?.requests ?? 0)) / seconds,
      failuresPerSecond: Math.max(counts.failures - (old?.failures ?? 0), 0) / seconds,
      p50Ms: quantileMs(old, counts, 0.5),
      p99Ms: quantileMs(old, counts, 0.99),
    });
  }
  return rates;
}
