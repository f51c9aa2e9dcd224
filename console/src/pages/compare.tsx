// Compare two versions: rows added, removed and moved, drift, and neighbours.
import type { JSX } from "preact";
import { Overview, get, modelPath } from "../api";
import { Params, address, setParams, useLoad } from "../hooks";
import { Copied, Folded, Grid, Select, Status, Wrong, chosenModel, column, shown, wrongModel } from "../parts";

// If a smaller share of the neighbours that chance does not explain is common, the versions are not alike.
const MIXED_OVERLAP = 0.1;

interface Histogram {
  edges: number[];
  counts: number[];
}

interface Rows {
  count: number;
  first: string[];
}

interface Drift {
  rows: number;
  is_aligned: boolean;
  cosines: Histogram;
  norm_ratios: Histogram;
  median_cosine: number | null;
  equal: number;
  drifted: number;
  percent: number;
  worst: { name: string; old_id: number; new_id: number; cosine: number | null }[];
}

interface TableDiff {
  table: string;
  old_rows: number;
  new_rows: number;
  added: Rows;
  removed: Rows;
  moved: Rows;
  common: number;
  drift: Drift | null;
  neighbours: { k: number; overlap: number; chance: number; queries: number } | null;
  notes: string[];
}

interface Diff {
  /** A row whose cosine is below this has drifted. */
  drifted_cosine: number;
  tables: TableDiff[];
  added_tables: string[];
  removed_tables: string[];
  notes: string[];
}

function Bins({ label, histogram }: { label: string; histogram: Histogram }): JSX.Element {
  const largest = Math.max(...histogram.counts, 1);
  const told = histogram.counts
    .map((count, at) => (count ? `${shown(histogram.edges[at])} to ${shown(histogram.edges[at + 1])}: ${count}` : ""))
    .filter(Boolean);
  return (
    <figure>
      <figcaption>{label}</figcaption>
      <svg class="bars" viewBox={`0 0 ${histogram.counts.length} 100`} preserveAspectRatio="none" role="img" aria-label={`${label}. ${told.join("; ")}`}>
        {histogram.counts.map((count, at) => (
          <rect key={at} class="plus" x={at + 0.05} width={0.9} y={100 - (97 * count) / largest} height={(97 * count) / largest}>
            <title>{`${shown(histogram.edges[at])} to ${shown(histogram.edges[at + 1])}: ${count}`}</title>
          </rect>
        ))}
      </svg>
      <p class="ends">
        <span>{shown(histogram.edges[0], 3)}</span>
        <span>{shown(histogram.edges.at(-1), 3)}</span>
      </p>
    </figure>
  );
}

function TableCard({ diff, model, to, limit }: { diff: TableDiff; model: string; to: string; limit: number }): JSX.Element {
  const { drift, neighbours } = diff;
  const cosines = column(drift?.worst.map((row) => row.cosine) ?? []);
  return (
    <section class="card" aria-label={`Table ${diff.table}`}>
      <h2>{diff.table}</h2>
      <dl>
        {(["added", "removed", "moved"] as const).map((kind) => (
          <div key={kind}>
            <dt>{kind}</dt>
            <dd title={diff[kind].first.join(", ")}>{shown(diff[kind].count)}</dd>
          </div>
        ))}
        <div>
          <dt>in both</dt>
          <dd>{shown(diff.common)}</dd>
        </div>
        {drift ? (
          <>
            <div>
              <dt>drifted (cosine below {limit})</dt>
              <dd>
                {shown(drift.drifted)} of {shown(drift.rows)} ({shown(drift.percent, 3)} %)
              </dd>
            </div>
            <div>
              <dt>median cosine</dt>
              <dd>{shown(drift.median_cosine)}</dd>
            </div>
          </>
        ) : null}
        {neighbours ? (
          <div>
            <dt>same neighbours of {neighbours.k}</dt>
            <dd>
              {shown(neighbours.overlap * 100, 3)} % (by chance {shown(neighbours.chance * 100, 2)} %)
            </dd>
          </div>
        ) : null}
      </dl>
      {neighbours && neighbours.overlap - neighbours.chance < MIXED_OVERLAP * (1 - neighbours.chance) ? (
        <p>Almost no row kept its neighbours: do not mix vectors of both versions. Usual after training anew.</p>
      ) : null}
      {diff.notes.map((note) => (
        <p key={note} class="faint">
          {note}
        </p>
      ))}
      {drift ? (
        <>
          <Folded summary="Cosines and norms">
          <div class="columns">
            <Bins label={drift.is_aligned ? "Cosine of old and new row, after the best rotation" : "Cosine of old and new row"} histogram={drift.cosines} />
            <Bins label="New norm / old norm" histogram={drift.norm_ratios} />
          </div>
          </Folded>
          {drift.worst.length ? (
            <Grid
              label={`Rows of ${diff.table} that changed most`}
              rows={drift.worst.map((row, at) => ({ ...row, cosine: cosines[at] }))}
              columns={[
                { name: "row", cell: (row) => <a href={address("tables", { model, version: to, table: diff.table, id: String(row.new_id) })}>{row.name}</a> },
                { name: "old id", isNumber: true, cell: (row) => row.old_id },
                { name: "new id", isNumber: true, cell: (row) => row.new_id },
                { name: "cosine", isNumber: true, cell: (row) => row.cosine },
              ]}
            />
          ) : null}
        </>
      ) : null}
    </section>
  );
}

/** Says in one sentence what changed in all tables. */
function summary(tables: TableDiff[], from: string, to: string): string {
  const sum = (of: (one: TableDiff) => number): string => shown(tables.reduce((total, one) => total + of(one), 0));
  const drifted = `${sum((one) => one.drift?.drifted ?? 0)} of ${sum((one) => one.drift?.rows ?? 0)} compared rows drifted`;
  return `From version ${from} to ${to}: ${sum((one) => one.added.count)} rows added, ${sum((one) => one.removed.count)} removed, ${sum((one) => one.moved.count)} moved to another id; ${drifted}.`;
}

export function Compare({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const models = overview.models;
  const canCompare = overview.methods.includes("diff");
  const model = models.find((one) => one.name === params["model"]) ?? models.find((one) => one.folders.length > 1) ?? chosenModel(models, params);
  const name = model?.name ?? "";
  // A version that is not served is compared from its folder.
  const served = model?.versions.filter((one) => one.state === "AVAILABLE").map((one) => one.version) ?? [];
  const versions = [...new Set([...served, ...(model?.folders ?? [])])].sort((a, b) => b - a).map(String);
  const failed = model?.versions.filter((one) => one.code !== "OK").map((one) => String(one.version)) ?? [];
  const sound = versions.filter((one) => !failed.includes(one));
  const told = (one: string): string => (served.includes(Number(one)) ? one : `${one} (${failed.includes(one) ? "failed to load" : "on disk, not served"})`);
  const options = versions.map((one): [string, string] => [one, told(one)]);
  const chosen = (key: string, otherwise: string | undefined): string =>
    versions.includes(params[key] ?? "") ? (params[key] ?? "") : (otherwise ?? "");
  const to = chosen("to", sound[0] ?? versions[0]);
  const from = chosen("from", sound.find((one) => Number(one) < Number(to)) ?? sound.find((one) => one !== to));
  const absent = (["from", "to"] as const).map((key) => params[key] ?? "").filter((one) => one && !versions.includes(one));
  const path = canCompare && from && to && from !== to ? `${modelPath(name, from)}:diff?to=${to}` : "";
  const diff = useLoad(path, async (signal) => (path ? get<Diff>(path, signal) : undefined));
  return (
    <>
      <h1 tabIndex={-1}>Compare</h1>
      {wrongModel(models, { model: params["model"] ?? "" }) ? <Wrong what={wrongModel(models, { model: params["model"] ?? "" })} /> : null}
      {absent.length ? <Wrong what={`${name} has no version ${absent.join(" and no version ")}.`} /> : null}
      <div class="fields">
        <Select label="Model" value={name} options={models.map((one) => one.name)} onChange={(value) => setParams({ model: value, from: "", to: "" })} />
        {versions.length > 1 ? (
          <>
            <Select label="From version" value={from} options={options} onChange={(value) => setParams({ from: value })} />
            <Select label="To version" value={to} options={options} onChange={(value) => setParams({ to: value })} />
          </>
        ) : null}
      </div>
      {!canCompare ? (
        <p class="faint">This server has no route that compares versions.</p>
      ) : path ? (
        <Status of={diff} what="the comparison" />
      ) : versions.length > 1 ? (
        <p class="faint">Choose two different versions{failed.length ? "; one that failed to load may be unreadable" : ""}.</p>
      ) : (
        <section class="card" aria-label="How to get two versions">
          <h2>How to get two versions</h2>
          <p>
            Comparing needs two versions, and the folder of {name} has {versions.length}. Train the model again, and write what you trained into the
            same folder: the command writes the next version beside the old one, and the server serves it within seconds. The old one stays on
            disk, where this page reads it.
          </p>
          <Copied label="From a Keras file" text={`model-export export MODEL.keras --out ${model?.base_path || "MODEL_FOLDER"}`} />
          <Copied label="From files of vectors" text={`model-export import --table NAME=FILE --out ${model?.base_path || "MODEL_FOLDER"}`} />
        </section>
      )}
      {diff.data ? (
        <>
          {diff.data.notes.map((note) => (
            <p key={note}>{note}</p>
          ))}
          {diff.data.added_tables.length ? <p>New tables: {diff.data.added_tables.join(", ")}</p> : null}
          {diff.data.removed_tables.length ? <p>Tables that are gone: {diff.data.removed_tables.join(", ")}</p> : null}
          <p>{summary(diff.data.tables, from, to)}</p>
          {diff.data.tables.map((one) => (
            <TableCard key={one.table} diff={one} model={name} to={to} limit={diff.data?.drifted_cosine ?? 0} />
          ))}
        </>
      ) : null}
    </>
  );
}
