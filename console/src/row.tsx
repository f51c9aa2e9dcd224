// One row of a table: its values as bars, its norm, its provenance, and its neighbours.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Row, get, post, tablePath } from "./api";
import { useLoad } from "./hooks";
import { Ago, Choice, Grid, Status, column, nameOf, rowColumns, shown } from "./parts";

const HEIGHT = 120;

function Bars({ values }: { values: (number | null)[] }): JSX.Element {
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)), Number.MIN_VALUE);
  const width = Math.max(values.length, 16);
  return (
    <svg
      class="bars"
      viewBox={`0 0 ${width} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`${values.length} values from ${shown(Math.min(...values.map((v) => v ?? 0)))} to ${shown(Math.max(...values.map((v) => v ?? 0)))}`}
    >
      <line x1="0" x2={width} y1={HEIGHT / 2} y2={HEIGHT / 2} class="axis" />
      {values.map((value, at) => {
        const height = (Math.abs(value ?? 0) / largest) * (HEIGHT / 2 - 2);
        const top = (value ?? 0) >= 0 ? HEIGHT / 2 - height : HEIGHT / 2;
        const kind = value === null ? "missing" : value >= 0 ? "plus" : "minus";
        return (
          <rect
            key={at}
            x={at + 0.1}
            y={value === null ? 0 : top}
            width={0.8}
            height={value === null ? HEIGHT : Math.max(height, 0.5)}
            class={kind}
          >
            <title>{`${at}: ${shown(value)}`}</title>
          </rect>
        );
      })}
    </svg>
  );
}

/** One list for each query, the nearest row first. */
interface Neighbors {
  ids: number[][];
  keys?: (string | number | null | { b64: string })[][];
  labels?: (string | null)[][];
  scores: (number | null)[][];
}

function NeighborList({ choice, row }: { choice: Choice; row: Row }): JSX.Element {
  const table = choice.table?.name ?? "";
  const path = tablePath(choice.model, String(row.version), table, ":neighbors");
  const loaded = useLoad(`${path}/${row.id}`, (signal) => post<Neighbors>(path, { ids: [row.id], k: 10, metric: "cosine", labels: true }, signal));
  const { ids = [], keys = [], labels = [], scores = [] } = loaded.data ?? {};
  const cosines = column(scores[0] ?? []);
  const found = (ids[0] ?? []).map((id, at) => ({ id, key: keys[0]?.[at], label: labels[0]?.[at] ?? null, score: cosines[at] }));
  return (
    <section>
      <h3>Nearest rows</h3>
      <Status of={loaded} what="neighbours" />
      <Grid
        label="Nearest rows by cosine"
        rows={found}
        columns={[
          ...rowColumns(choice, found),
          { name: "cosine", isNumber: true, cell: (one) => one.score },
        ]}
      />
    </section>
  );
}

/** Shows one row by its id. comes: it scrolls into view, if it is not there. */
export function RowPanel(props: { choice: Choice; id: string; methods: string[]; comes?: boolean }): JSX.Element {
  const { choice, id } = props;
  const path = tablePath(choice.model, choice.version, choice.table?.name ?? "", `:row?${new URLSearchParams({ id })}`);
  // A new version, or a delta, shows within some seconds.
  const loaded = useLoad(path, (signal) => get<Row>(path, signal), 5000);
  const row = loaded.data;
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!props.comes) return;
    const show = (): void => {
      const { top } = card.current!.getBoundingClientRect();
      if (top < 0 || top > 0.5 * innerHeight) card.current!.scrollIntoView();
    };
    show();
    // A link to the row that is shown already changes nothing else.
    const onClick = (event: Event): void => {
      if ((event.target as Element).closest("a")?.href === location.href) show();
    };
    document.addEventListener("click", onClick);
    return () => document.removeEventListener("click", onClick);
  }, [props.comes, path]);
  const name = row ? nameOf({ id: row.id, label: row.label, key: Object.values(row.keys).find((key) => key !== null) }, choice.table) : "";
  return (
    <section class="card" aria-label="Row" ref={card}>
      <Status of={loaded} what="the row" />
      {row ? (
        <>
          <h2>
            Row {row.id}
            {name ? <span class="key"> {name}</span> : null}
          </h2>
          <dl>
            <div>
              <dt>norm</dt>
              <dd>{shown(row.norm)}</dd>
            </div>
            <div>
              <dt>version</dt>
              <dd>{row.version}</dd>
            </div>
            <div>
              <dt>last written by</dt>
              <dd>
                {row.delta ? `delta ${row.delta.sequence}` : "the version's own files"}
                {row.delta?.time_s ? <>, <Ago atS={row.delta.time_s} /></> : null}
              </dd>
            </div>
          </dl>
          <Bars values={row.values} />
          <details>
            <summary>{row.values.length} values</summary>
            <pre tabIndex={0} role="region" aria-label="Values">
              {row.values.map((value, at) => `${at}\t${shown(value, 7)}`).join("\n")}
            </pre>
          </details>
          {props.methods.includes("neighbors") ? <NeighborList choice={choice} row={row} /> : null}
        </>
      ) : null}
    </section>
  );
}
