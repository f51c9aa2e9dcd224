// Traffic: rate and latency by model, and the rows that are read most, while the page is open.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { Hot, Overview, Refusal, checked, get, send, tablePath } from "../api";
import { Params, address, useLoad } from "../hooks";
import { Rates, Reading, ratesBetween, readMetrics } from "../metrics";
import { Grid, Status, TableChoice, shown, useTables } from "../parts";
import { GROUP_COLORS } from "../points";
import { rowParams } from "../row";

const POLL_MS = 2000;
const MAX_READINGS = 300;
const HOT_ROWS = 20;

interface Traffic {
  readings: Reading[];
  rates: { atS: number; models: Map<string, Rates> }[];
}

function Plot(props: { label: string; unit: string; names: string[]; traffic: Traffic; value: (rates: Rates) => number | null }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const { names, traffic } = props;
  const data: uPlot.AlignedData = [
    traffic.rates.map((one) => one.atS),
    ...names.map((name) =>
      traffic.rates.map((one) => {
        const rates = one.models.get(name);
        return rates ? props.value(rates) : null;
      }),
    ),
  ];
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const ink = getComputedStyle(document.body).color;
    const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: 240,
        axes: [axis, { ...axis, size: 70 }],
        scales: { y: { range: (_, __, max) => [0, Math.max((max || 0) * 1.1, 1e-3)] } },
        series: [
          {},
          ...names.map((name, at) => ({
            label: name || "(no model)",
            stroke: GROUP_COLORS[at % GROUP_COLORS.length] ?? ink,
            width: 2,
            value: (_: uPlot, value: number | null) => (value === null ? "–" : `${shown(value, 3)} ${props.unit}`),
          })),
        ],
      },
      data,
      element,
    );
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 240 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [names.join("\n")]);
  useEffect(() => plot.current?.setData(data), [traffic]);
  return (
    <section class="card">
      <h2>{props.label}</h2>
      <div class="plot" ref={place} role="img" aria-label={`${props.label}; the table below has the last values`} />
    </section>
  );
}

/** A reading of the hot rows, and the reading before it. */
interface HotReading {
  atMs: number;
  hot: Hot;
  before: { atMs: number; version: number; lookups: Map<number, number> } | undefined;
}

/** Estimates how often a row was read a second between two readings; null without two readings of the row. */
function perSecond(reading: HotReading, row: { id: number; lookups: number }): number | null {
  const { before, hot } = reading;
  const old = before?.version === hot.version ? before.lookups.get(row.id) : undefined;
  if (!before || old === undefined || old > row.lookups) return null;
  return (row.lookups - old) / Math.max((reading.atMs - before.atMs) / 1000, 0.001);
}

function HotIds({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const { choice, loaded } = useTables(overview.models, params);
  const kept = useRef<{ path: string; reading: HotReading } | undefined>(undefined);
  const table = choice.table?.name ?? "";
  const path = table ? tablePath(choice.model, choice.version, table, `:hot?k=${HOT_ROWS}`) : "";
  const hot = useLoad(
    path,
    async (signal): Promise<HotReading | undefined> => {
      if (!path) return undefined;
      const found = await get<Hot>(path, signal);
      const last = kept.current?.path === path ? kept.current.reading : undefined;
      const before = last && { atMs: last.atMs, version: last.hot.version, lookups: new Map(last.hot.rows.map((row) => [row.id, row.lookups])) };
      const reading = { atMs: Date.now(), hot: found, before };
      kept.current = { path, reading };
      return reading;
    },
    POLL_MS,
  );
  const reading = hot.data;
  const isUnsampled = hot.error instanceof Refusal && hot.error.status === 501;
  return (
    <section class="card" aria-label="Hot rows">
      <h2>Hot rows</h2>
      <TableChoice models={overview.models} choice={choice} />
      <Status of={loaded} what="tables" />
      {isUnsampled ? <p class="faint">{hot.error?.message}</p> : <Status of={hot} what="hot rows" />}
      {reading && !isUnsampled ? (
        <>
          <Grid
            label="Rows that are read most"
            rows={reading.hot.rows}
            columns={[
              { name: "row", isNumber: true, cell: (row) => <a href={address("tables", rowParams(choice, row.id))}>{row.id}</a> },
              { name: "key", cell: (row) => String(row.key ?? "") },
              { name: "lookups/s", isNumber: true, cell: (row) => shownRate(perSecond(reading, row)) },
              { name: "lookups", isNumber: true, cell: (row) => shown(row.lookups) },
              { name: "share", isNumber: true, cell: (row) => `${shown(row.share * 100, 3)} %` },
            ]}
          />
          <p class="faint">
            Estimates from {shown(reading.hot.sampled)} sampled lookups of about {shown(reading.hot.lookups)} since version {reading.hot.version} was
            loaded.
          </p>
        </>
      ) : null}
    </section>
  );
}

function shownRate(rate: number | null): string {
  return rate === null ? "–" : shown(rate, 3);
}

export function Traffic({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const kept = useRef<Traffic>({ readings: [], rates: [] });
  const loaded = useLoad(
    "metrics",
    async (signal): Promise<Traffic> => {
      const response = await checked(await send("GET", "/metrics", undefined, signal));
      const reading = readMetrics(await response.text(), Date.now());
      const before = kept.current.readings.at(-1);
      const rates = before ? [...kept.current.rates, { atS: reading.atMs / 1000, models: ratesBetween(before, reading) }] : [];
      kept.current = { readings: [reading], rates: rates.slice(-MAX_READINGS) };
      return kept.current;
    },
    POLL_MS,
  );
  const traffic = loaded.data;
  const last = traffic?.rates.at(-1)?.models ?? new Map<string, Rates>();
  const names = [...(traffic?.readings.at(-1)?.models.keys() ?? [])].sort();
  return (
    <>
      <h1 tabIndex={-1}>Traffic</h1>
      <Status of={loaded} what="metrics" />
      {traffic ? (
        <>
          <Plot label="Requests a second" unit="/s" names={names} traffic={traffic} value={(rates) => rates.perSecond} />
          <Plot label="p99 latency (ms)" unit="ms" names={names} traffic={traffic} value={(rates) => rates.p99Ms} />
          <section class="card" aria-label="Last seconds">
            <h2>Last {POLL_MS / 1000} seconds</h2>
            <Grid
              label="Rate and latency by model"
              rows={names.map((name) => ({ name, rates: last.get(name) }))}
              columns={[
                { name: "model", cell: (one) => one.name || "(no model)" },
                { name: "requests/s", isNumber: true, cell: (one) => shown(one.rates?.perSecond ?? 0, 3) },
                { name: "failures/s", isNumber: true, cell: (one) => shown(one.rates?.failuresPerSecond ?? 0, 3) },
                { name: "p50 (ms)", isNumber: true, cell: (one) => (one.rates?.p50Ms == null ? "–" : shown(one.rates.p50Ms, 3)) },
                { name: "p99 (ms)", isNumber: true, cell: (one) => (one.rates?.p99Ms == null ? "–" : shown(one.rates.p99Ms, 3)) },
              ]}
            />
            {names.length ? null : <p class="faint">No request has come yet.</p>}
            <p class="faint">Latencies are upper limits of the metrics' buckets, of requests that succeeded.</p>
          </section>
        </>
      ) : null}
      {overview.methods.includes("hot") ? <HotIds overview={overview} params={params} /> : null}
    </>
  );
}
