// Traffic: rates, failures and latencies of each model since the server's start, and the rows that are read most.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { Hot, Overview, Refusal, get, tablePath } from "../api";
import { Params, address, useLoad } from "../hooks";
import { Ago, Grid, IS_PHONE, More, READS, Status, TableChoice, UNKNOWN_MODEL, column, duration, hotNote, modelName, rowColumns, shown, time, useTables } from "../parts";
import { GROUP_COLORS } from "../points";
import { Statusz } from "../statusz";

const POLL_MS = 2000;
const HISTORY_MS = 5000;
const HOT_ROWS = IS_PHONE ? 5 : 20;
// The plots have the models with the most requests; the tables show as many first.
const SHOWN_MODELS = IS_PHONE ? 4 : 8;
// More rows are read than shown, so that a row that comes into the list has an earlier reading.
const READ_ROWS = 200;
// The rates of hot rows are means of this time: a rate of a shorter one would jump, because reads are sampled.
const RATE_MS = 30_000;

// Failures are red or near it, so that no model is; the requests for no known model, and for all others, are grey.
const FAILED_COLORS = ["#d8342b", "#c2188b", "#e07a00", "#a6801f"];
const MODEL_COLORS = GROUP_COLORS.filter((color) => color !== "#c7514c");
const NO_MODEL_COLOR = "#8d9099";

const KINDS = { lookup: "lookups", predict: "predictions", search: "searches for nearest rows" };

type Values = (number | null)[];

/** Of one model, a number for each interval. */
interface Rates {
  successes_per_s: number[];
  failures_per_s: number[];
  p50_ms: Values;
  p99_ms: Values;
}

/** The requests of the time before now. kind: "" for failures. */
interface Span {
  seconds: number;
  rows: { model: string; kind: "lookup" | "predict" | "search" | ""; successes: number; failures: number; p50_ms: number | null; p99_ms: number | null }[];
}

/** spans: of the last minute, of the last five, and since the server's start. at_s: the ends of the intervals; the first one begins at start_s. */
interface History {
  start_s: number;
  at_s: number[];
  models: Record<string, Rates>;
  spans: Span[];
}

interface Line {
  name: string;
  color: string;
  isDashed: boolean;
  values: Values;
}

function Plot(props: { label: string; axis: string; unit: string; history: History; lines: Line[] }): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const { history, lines } = props;
  const data: uPlot.AlignedData = [history.at_s, ...lines.map((line) => line.values)];
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const ink = getComputedStyle(document.body).color;
    const paper = getComputedStyle(element.parentElement!).backgroundColor;
    const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    // A day's times need no date, and those of more than an hour no seconds.
    const spanS = Date.now() / 1000 - history.start_s;
    const atS = (second: number): string => time(second).slice(spanS < 86_400 ? 11 : 5, spanS < 3600 ? 19 : 16);
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: 260,
        // The last time on the axis needs half of its width.
        padding: [null, 30, null, null],
        axes: [
          { ...axis, label: "time", labelSize: 18, space: spanS < 86_400 ? 64 : 90, values: (_, splits) => splits.map(atS) },
          { ...axis, label: props.axis, labelSize: 18, size: 60 },
        ],
        legend: { markers: { width: 3, dash: (_, series) => (lines[series - 1]?.isDashed ? "dashed" : "solid") } },
        scales: { y: { range: (_, __, max) => [0, Math.max((max || 0) * 1.1, 1e-3)] } },
        series: [
          { label: "time", value: (_: uPlot, value: number | null) => (value === null ? (IS_PHONE ? "Tap the plot to see values" : "Point at the plot to see values") : time(value)) },
          ...lines.map((line) => ({
            label: line.name,
            stroke: line.color,
            width: 2,
            ...(line.isDashed ? { dash: [6, 4] } : {}),
            // An interval with requests between idle ones has no line, only a point: a ring for a dashed line.
            points: {
              size: 7,
              width: 2,
              fill: line.isDashed ? paper : line.color,
              filter: (plot: uPlot, series: number) => {
                const values = plot.data[series] ?? [];
                return [...values.keys()].filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);
              },
            },
            // Without a pointer there is no index.
            value: (_: uPlot, value: number | null, __: number, at: number | null) =>
              value === null ? (at === null ? "" : "–") : `${shown(value, 3)} ${props.unit}`,
          })),
        ],
      },
      data,
      element,
    );
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: 260 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [lines.map((line) => line.name + line.color).join("\n")]);
  useEffect(() => plot.current?.setData(data), [history]);
  return (
    <section class="card">
      <h2>{props.label}</h2>
      {lines.length ? <div class="plot" ref={place} role="img" aria-label={`${props.label}; the table below has the last values`} /> : <p class="faint">Nothing yet.</p>}
    </section>
  );
}

// The colours of models, from the first look at them on.
const colorOf = new Map<string, string>();

/** Names the models, by the number of requests since the server's start if there are more than are shown. */
function byRequests({ spans }: History): string[] {
  const requests = new Map<string, number>();
  for (const { model, successes, failures } of spans[2]?.rows ?? []) requests.set(model, (requests.get(model) ?? 0) + successes + failures);
  const names = [...new Set(spans.flatMap((span) => span.rows.map((one) => one.model)))].sort();
  return names.length > SHOWN_MODELS ? names.sort((a, b) => (requests.get(b) ?? 0) - (requests.get(a) ?? 0)) : names;
}

/** Makes the lines of one plot, two for each model, without those that are 0 throughout. */
function linesOf(history: History, solid: keyof Rates, dashed: keyof Rates, suffixes: [string, string]): Line[] {
  const most = byRequests(history).slice(0, SHOWN_MODELS);
  return Object.entries(history.models).filter(([name]) => most.includes(name)).flatMap(([name, rates]) => {
    const color = colorOf.get(name) ?? NO_MODEL_COLOR;
    const failed = FAILED_COLORS[[...colorOf.keys()].indexOf(name) % FAILED_COLORS.length] ?? NO_MODEL_COLOR;
    const lines = [
      { name: `${modelName(name)} ${suffixes[0]}`, color, isDashed: false, values: rates[solid] },
      { name: `${modelName(name)} ${suffixes[1]}`, color: dashed === "failures_per_s" ? failed : color, isDashed: true, values: rates[dashed] },
    ];
    return lines.filter((line) => line.values.some((value) => value));
  });
}

/** One line of the table of models. */
interface ModelRow {
  name: string;
  failed1: number;
  failed5: number;
  answered: number;
  failed: number;
  perSecond: string;
  perSecond5: string;
  share: string;
}

/** Makes the lines of the table of models, the numbers of each column alike. */
function rowsOf(history: History): ModelRow[] {
  const { spans } = history;
  const names = byRequests(history);
  const sum = (span: Span | undefined, name: string, of: "successes" | "failures"): number =>
    span?.rows.reduce((total, one) => total + (one.model === name ? one[of] : 0), 0) ?? 0;
  const [minute, minutes, ever] = spans;
  const perSecond = (span: Span | undefined): string[] => column(names.map((name) => sum(span, name, "successes") / (span?.seconds ?? 1)), 3);
  const [rates, rates5] = [perSecond(minute), perSecond(minutes)];
  const totals = names.map((name) => ({ answered: sum(ever, name, "successes"), failed: sum(ever, name, "failures") }));
  const shares = column(totals.map(({ answered, failed }) => (answered + failed ? (failed / (answered + failed)) * 100 : null)), 3, "–");
  return totals.map(({ answered, failed }, at) => ({
    name: names[at] ?? "",
    answered,
    failed,
    failed1: sum(minute, names[at] ?? "", "failures"),
    failed5: sum(minutes, names[at] ?? "", "failures"),
    perSecond: rates[at] ?? "",
    perSecond5: rates5[at] ?? "",
    share: shares[at] === "–" ? "–" : `${shares[at]} %`,
  }));
}

/** The latencies of the last five minutes, of each model's lookups and predictions apart. */
function Latencies({ span, names }: { span: Span; names: string[] }): JSX.Element {
  const answered = span.rows.filter((one) => one.successes).sort((a, b) => names.indexOf(a.model) - names.indexOf(b.model));
  // Microseconds, because a lookup takes some of them where another model's predictions take milliseconds.
  const [p50, p99] = [answered.map((one) => one.p50_ms), answered.map((one) => one.p99_ms)].map((ms) => column(ms, 3, "–", 3));
  return (
    <section class="card" aria-label="Latency by kind">
      <h2>Latency of the last {span.seconds < 295 ? duration(span.seconds) : "5 minutes"}</h2>
      {answered.length ? (
        <More
          label="Latency of lookups and of predictions"
          most={SHOWN_MODELS}
          rows={answered.map((one, at) => ({ ...one, p50: p50?.[at], p99: p99?.[at] }))}
          columns={[
            { name: "model", cell: (one) => modelName(one.model) },
            { name: "requests", cell: (one) => (one.kind && KINDS[one.kind]) },
            { name: "answered", isNumber: true, cell: (one) => shown(one.successes) },
            { name: "p50 (ms)", isNumber: true, cell: (one) => one.p50 },
            { name: "p99 (ms)", isNumber: true, cell: (one) => one.p99 },
          ]}
        />
      ) : (
        <p class="faint">No request was answered.</p>
      )}
      <p class="faint">Times without the network.</p>
    </section>
  );
}

/** A reading of the hot rows. */
interface Reading {
  atMs: number;
  version: number;
  reads: Map<number, number>;
}

/** The newest hot rows, and the readings of the last RATE_MS from the oldest on. */
interface HotReadings {
  hot: Hot;
  readings: Reading[];
}

/** Estimates how often a row was read a second, since its oldest reading; null without an earlier reading of the row. */
function perSecond({ hot, readings }: HotReadings, row: { id: number; lookups: number }): number | null {
  const old = readings.find((one) => one.version === hot.version && (one.reads.get(row.id) ?? Infinity) <= row.lookups);
  const newest = readings.at(-1);
  if (!old || !newest || old === newest) return null;
  return (row.lookups - (old.reads.get(row.id) ?? 0)) / Math.max((newest.atMs - old.atMs) / 1000, 0.001);
}

function HotIds({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const { choice, loaded } = useTables(overview.models, params);
  const kept = useRef<{ path: string; readings: Reading[] }>({ path: "", readings: [] });
  const table = choice.table?.name ?? "";
  const path = table ? tablePath(choice.model, choice.version, table, `:hot?k=${READ_ROWS}`) : "";
  const loadedHot = useLoad(
    path,
    async (signal): Promise<HotReadings | undefined> => {
      if (!path) return undefined;
      const hot = await get<Hot>(path, signal);
      const atMs = Date.now();
      const before = kept.current.path === path ? kept.current.readings.filter((one) => one.atMs > atMs - RATE_MS) : [];
      const readings = [...before, { atMs, version: hot.version, reads: new Map(hot.rows.map((row) => [row.id, row.lookups])) }];
      kept.current = { path, readings };
      return { hot, readings };
    },
    POLL_MS,
  );
  const found = loadedHot.data;
  const isUnsampled = loadedHot.error instanceof Refusal && loadedHot.error.status === 501;
  const hot = found?.hot.rows.slice(0, HOT_ROWS) ?? [];
  const shares = column(hot.map((row) => row.share * 100), 3);
  const rows = hot.map((row, at) => ({ ...row, percent: shares[at], rate: found ? perSecond(found, row) : null }));
  const spanMs = found ? (found.readings.at(-1)?.atMs ?? 0) - (found.readings[0]?.atMs ?? 0) : 0;
  return (
    <section class="card" aria-label="Hot rows">
      <h2>Hot rows</h2>
      <TableChoice models={overview.models} choice={choice} loaded={loaded} />
      {isUnsampled ? <p class="faint">{loadedHot.error?.message}</p> : <Status of={loadedHot} what="hot rows" />}
      {found && !isUnsampled ? (
        <>
          <Grid
            label="Rows that are read most"
            rows={rows}
            columns={[
              ...rowColumns(choice, rows),
              { name: "reads/s", isNumber: true, cell: (row) => (row.rate === null ? "…" : shown(row.rate, 3)) },
              { name: "reads", tip: READS, isNumber: true, cell: (row) => shown(row.lookups) },
              { name: "share", isNumber: true, cell: (row) => `${row.percent} %` },
            ]}
          />
          <p class="faint">
            {hotNote(found.hot)} {spanMs ? `Reads/s are a mean of the last ${duration(spanMs / 1000)}.` : ""}
            {rows.some((row) => row.rate === null) ? ` “…”: a rate needs two readings of the row, ${POLL_MS / 1000} s apart.` : ""}
          </p>
        </>
      ) : null}
    </section>
  );
}

/** Returns the names of the model and of the table that are read most, of one model if its name is given. */
function busiest(statusz: Statusz | undefined, model: string): Params {
  const tables = Object.entries(statusz?.models ?? {})
    .filter(([name]) => !model || name === model)
    .flatMap(([name, { versions }]) => versions.flatMap((one) => one.tables ?? []).map((one) => ({ name, table: one.table, reads: one.reads ?? one.ids ?? 0 })));
  const most = tables.sort((a, b) => b.reads - a.reads)[0];
  return most?.reads ? { model: most.name, table: most.table } : {};
}

export function Traffic({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const loaded = useLoad("traffic", (signal) => get<History>("/console/traffic", signal), HISTORY_MS);
  const history = loaded.data;
  // Read once for each choice of a model, so that the table does not change while somebody looks.
  const undecided = params["table"] ? "" : `statusz ${params["model"] ?? ""}`;
  const statusz = useLoad(undecided, async (signal) => (undecided ? get<Statusz>("/v1/statusz", signal) : undefined));
  const hotParams = undecided ? { ...params, ...busiest(statusz.data, params["model"] ?? "") } : params;
  const names = Object.keys(history?.models ?? {});
  const told = history ? rowsOf(history) : [];
  for (const { name } of overview.models) if (!colorOf.has(name)) colorOf.set(name, MODEL_COLORS[colorOf.size % MODEL_COLORS.length] ?? "");
  return (
    <>
      <h1 tabIndex={-1}>Traffic</h1>
      <Status of={loaded} what="the traffic" />
      {history && !names.length ? <p class="card faint">No request has come since the server started <Ago atS={history.start_s} />.</p> : null}
      {history && names.length ? (
        <>
          {names.length > SHOWN_MODELS ? <p class="faint">The plots have the first {SHOWN_MODELS} lines of “Requests by model”, the models with the most requests.</p> : null}
          <div class="columns">
            <Plot
              label="Requests since the server's start"
              axis="requests a second"
              unit="/s"
              history={history}
              lines={linesOf(history, "successes_per_s", "failures_per_s", ["answered", "failed"])}
            />
            <Plot
              label="Latency of answered requests, lookups and predictions together"
              axis="milliseconds"
              unit="ms"
              history={history}
              lines={linesOf(history, "p50_ms", "p99_ms", ["p50", "p99"])}
            />
          </div>
          <section class="card" aria-label="Requests by model">
            <h2>Requests by model</h2>
            <More
              label="Rate and failures by model"
              most={SHOWN_MODELS}
              rows={told}
              columns={[
                { name: "model", cell: (one) => modelName(one.name) },
                { name: "answered/s, 1 min", isNumber: true, cell: (one) => one.perSecond },
                { name: "answered/s, 5 min", isNumber: true, cell: (one) => one.perSecond5 },
                { name: "failed, 1 min", isNumber: true, cell: (one) => shown(one.failed1) },
                { name: "failed, 5 min", isNumber: true, cell: (one) => shown(one.failed5) },
                { name: "answered", tip: "since the server's start", isNumber: true, cell: (one) => shown(one.answered) },
                { name: "failed", tip: "since the server's start", isNumber: true, cell: (one) => shown(one.failed) },
                { name: "failed share", isNumber: true, cell: (one) => one.share },
              ]}
            />
            <p class="faint">
              {names.includes("") ? `${UNKNOWN_MODEL} ` : ""}
              Totals and shares are since the server's start. The <a href={address("", { show: "last-errors" })}>last errors</a> say why requests failed.
            </p>
          </section>
          {history.spans[1] ? <Latencies span={history.spans[1]} names={told.map((one) => one.name)} /> : null}
        </>
      ) : null}
      {overview.models.length > 0 && overview.methods.includes("hot") && !statusz.isLoading ? <HotIds overview={overview} params={hotParams} /> : null}
    </>
  );
}
