// Deltas: rows that changed without a new version, and the journal of upserts, for each version.
import type { JSX } from "preact";
import { Overview, Session, get, tablePath } from "../api";
import { useLoad } from "../hooks";
import { AdminPage, Ago, Grid, Status, bytes, duration, shown } from "../parts";
import { DeltaStatus, Statusz } from "../statusz";

const POLL_MS = 2000;
const SHOWN_UNCHANGED = 6;

/** Writes counts by reason; "none" if all are 0. */
function reasons(counts: Record<string, number>): string {
  const told = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([reason, count]) => `${reason}: ${shown(count)}`);
  return told.join(", ") || "none";
}

/** Says where the page Admin is. */
function AdminPlace({ session, port }: { session: Session; port: unknown }): JSX.Element {
  const right = session.needs_sign_in ? " The caller needs the right “admin”." : "";
  if (port === 0) return <>The page Admin has a form, on a server that is started with --admin_port.{right}</>;
  return <>The <AdminPage isHere={session.is_admin} port={port} /> has a form.{right}</>;
}

interface Place {
  model: string;
  version: number;
  /** The version's folder; "" for a caller who may not see it. */
  folder: string;
  table: string;
}

/** Says whether nothing has come for a version. */
function isUnchanged(deltas: DeltaStatus): boolean {
  const counts = [deltas.last_sequence, deltas.pending, deltas.missing, ...Object.values(deltas.refused), ...Object.values(deltas.journal_failures)];
  return counts.every((count) => !count);
}

function VersionDeltas(props: Place & { deltas: DeltaStatus; session: Session; port: unknown }): JSX.Element {
  const { model, version, folder, table, deltas } = props;
  const { journal } = deltas;
  const isIdle = isUnchanged(deltas);
  const facts: [string, string][] = [
    ["last number", shown(deltas.last_sequence)],
    ["applied", shown(deltas.applied)],
    ["changed rows", shown(deltas.rows)],
    ["waiting", deltas.pending || deltas.lag_s ? `${shown(deltas.pending)}, for ${duration(deltas.lag_s)}` : "none"],
    ["missing numbers", shown(deltas.missing)],
    ["refused", reasons(deltas.refused)],
    ["upserts that failed", reasons(deltas.journal_failures)],
  ];
  return (
    <section class="card" aria-label={`Deltas of ${model} ${version}`}>
      <h2>
        {model}, version {version}
      </h2>
      {isIdle ? (
        <p>
          No rows were changed since this version was loaded. A delta changes rows of a served version without a new one.
        </p>
      ) : (
        <dl>
          {facts.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      )}
      {journal ? (
        <label class="journal">
          Journal of the rows that requests changed (upserts): {bytes(journal.bytes)} of {bytes(journal.max_bytes)}
          <meter value={journal.bytes} max={journal.max_bytes} high={0.9 * journal.max_bytes} />
        </label>
      ) : (
        <p class="faint">Changing rows by request (upserts) is off: --delta_journal_dir turns it on.</p>
      )}
      {isIdle ? (
        <p class="faint">
          Write a file with{" "}
          <code>
            model-export delta {folder || `…/${version}`} --table {table} --rows new.npz
          </code>
          , or send rows to <code>{tablePath(model, "", table, ":upsert")}</code> on the admin port. <AdminPlace session={props.session} port={props.port} />
        </p>
      ) : null}
      {deltas.recent.length ? (
        <Grid
          label={`Last deltas of ${model} ${version}`}
          rows={deltas.recent}
          columns={[
            { name: "number", isNumber: true, cell: (one) => one.sequence },
            { name: "table", cell: (one) => one.table },
            { name: "rows", isNumber: true, cell: (one) => shown(one.rows) },
            { name: "came by", cell: (one) => (one.is_upsert ? "request, in the journal" : "file") },
            { name: "made at", cell: (one) => (one.time_s ? <Ago atS={one.time_s} /> : "unknown") },
          ]}
        />
      ) : null}
    </section>
  );
}

export function Deltas({ overview, session }: { overview: Overview; session: Session }): JSX.Element {
  const statusz = useLoad("statusz", (signal) => get<Statusz>("/v1/statusz", signal), POLL_MS);
  const found = Object.entries(statusz.data?.models ?? {}).flatMap(([model, { versions }]) =>
    versions.flatMap(({ version, deltas, tables }) => {
      const base = overview.models.find((one) => one.name === model)?.base_path ?? "";
      return deltas ? [{ model, version, deltas, folder: base && `${base}/${version}`, table: tables?.[0]?.table ?? "TABLE" }] : [];
    }),
  );
  const changed = found.filter((one) => !isUnchanged(one.deltas));
  const unchanged = found.filter((one) => isUnchanged(one.deltas));
  // Each of them would say the same.
  const folded = unchanged.length > SHOWN_UNCHANGED ? unchanged.slice(1) : [];
  return (
    <>
      <h1 tabIndex={-1}>Deltas</h1>
      <Status of={statusz} what="deltas" />
      {statusz.data && !found.length ? <p class="faint">
          No version is loaded whose rows can be changed: this server runs with --delta_poll_wait_seconds=0, or its models have no lookup manifest
          (<code>model-export adopt</code> writes one).
        </p> : null}
      {[...changed, ...unchanged].filter((one) => !folded.includes(one)).map((one) => (
        <VersionDeltas key={`${one.model}/${one.version}`} {...one} session={session} port={statusz.data?.settings["admin_port"]?.value ?? 0} />
      ))}
      {folded.length ? (
        <details class="card">
          <summary>{folded.length} more versions whose rows were not changed</summary>
          <ul>
            {folded.map((one) => (
              <li key={`${one.model}/${one.version}`}>
                {one.model}, version {one.version}
              </li>
            ))}
          </ul>
        </details>
      ) : null}
    </>
  );
}
