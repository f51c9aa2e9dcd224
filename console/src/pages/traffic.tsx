// Traffic: rate and latency by model, computed from the server's metrics while the page is open.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { checked, send } from "../api";
import { useLoad } from "../hooks";
import { Rates, Reading, ratesBetween, readMetrics } from "../metrics";
import { Grid, Status, shown } from "../parts";

const POLL_MS = 2000;
const MAX_READINGS = 300;
// Colours that stay apart for people who see no red or no green, on light and on dark.
const COLORS = ["#3f7fd0", "#d17b0f", "#199b7d", "#b65a9e", "#8a8a2a", "#c7514c", "#5f8f3a", "#7a6ad8"];

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
            stroke: COLORS[at % COLORS.length] ?? ink,
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

export function Traffic(): JSX.Element {
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
    </>
  );
}
