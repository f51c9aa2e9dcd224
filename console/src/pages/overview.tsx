// Overview: what needs attention, models, versions on a time line, labels, load errors, limits, health.
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Change, Model, Overview, Version, get, nowS } from "../api";
import { address, readAddress, useLoad } from "../hooks";
import { AdminPage, Ago, Badge, Folded, Grid, IS_PHONE, More, NoModel, READS, Status, UNKNOWN_MODEL, ago, bytes, clock, duration, modelName, shown, time } from "../parts";
import { Noted, Setting, Statusz, TableStatus, VersionStatus } from "../statusz";

// Width of the time line; it is scaled to its card, and its letters with it.
const WIDTH = IS_PHONE ? 320 : 600;
const ROW = 22;
// The cards of more models show their versions only, until they are opened.
const SHOWN_MODELS = IS_PHONE ? 1 : 6;
const SHOWN_VERSIONS = 8;
const SHOWN_FAILURES = 10;
const SHOWN_NAMES = 3;
const SHOWN_ERRORS = IS_PHONE ? 2 : 10;
const SHOWN_STATES = IS_PHONE ? 1 : 5;

// The colours of the time line, and the states that they stand for.
const COLORS = [
  ["loading", "loading"],
  ["available", "available"],
  ["unloading", "unloading or ended"],
  ["failed", "failed"],
];

/** Draws when the versions of a model were loading, available, or ended. */
function TimeLine({ model, nowS }: { model: Model; nowS: number }): JSX.Element | null {
  const changes = model.history;
  const first = changes[0];
  if (!first) return null;
  const versions = [...new Set(changes.map((one) => one.version))].sort((a, b) => b - a).slice(0, SHOWN_VERSIONS);
  const startS = Math.min(...changes.filter((one) => versions.includes(one.version)).map((one) => one.at_s));
  const span = Math.max(nowS - startS, 1);
  const at = (second: number): number => 60 + ((second - startS) / span) * (WIDTH - 62);
  const told = versions.map((version) => {
    const own = changes.filter((one) => one.version === version);
    return `version ${version}: ${own.map((one) => `${one.state} at ${time(one.at_s)}`).join(", ")}`;
  });
  return (
    <figure>
    <figcaption class="faint">
      States of the versions over time:
      {COLORS.map(([kind, told]) => (
        <span key={kind} class="whole">
          <span class={`swatch ${kind}`} />
          {told}
        </span>
      ))}
    </figcaption>
    <svg class="line" viewBox={`0 0 ${WIDTH} ${versions.length * ROW + 16}`} role="img" aria-label={`Time line. ${told.join(". ")}`}>
      {versions.map((version, row) => {
        const own = changes.filter((one) => one.version === version);
        return (
          <g key={version}>
            <text x="0" y={row * ROW + 15}>
              {version}
            </text>
            {own.map((change: Change, number) => {
              const isLast = number === own.length - 1;
              const isOver = change.state === "END";
              const endS = isOver ? change.at_s : (own[number + 1]?.at_s ?? nowS);
              const kind = isOver && change.message ? "failed" : change.state.toLowerCase();
              const x = isOver && isLast ? Math.min(at(change.at_s), WIDTH - 4) : at(change.at_s);
              return (
                <rect key={number} x={x} y={row * ROW + 3} width={Math.max(at(endS) - x, 3)} height={ROW - 8} class={kind}>
                  <title>{`${change.state} ${time(change.at_s)} ${change.message}`}</title>
                </rect>
              );
            })}
          </g>
        );
      })}
      <text x="60" y={versions.length * ROW + 12} class="tick">
        {time(startS)} ({ago(startS)})
      </text>
      <text x={WIDTH} y={versions.length * ROW + 12} class="tick end">
        now
      </text>
    </svg>
    </figure>
  );
}

/** When a version came to its state. */
function Since({ model, version }: { model: Model; version: Version }): JSX.Element | null {
  const change = model.history.filter((one) => one.version === version.version && one.state === version.state).at(-1);
  return change ? (
    <span class="whole">
      {clock(change.at_s)}, <span title={time(change.at_s)}>{ago(change.at_s)}</span>
    </span>
  ) : null;
}

/** How to serve an older version again, or that one is served. */
function RollBack({ model, adminPage, hasAdmin }: { model: Model; adminPage: JSX.Element; hasAdmin: boolean }): JSX.Element | null {
  if (model.pinned !== null)
    return (
      <p class="problem">
        Rolled back to {model.pinned}, until End roll-back on the {adminPage}, or the next list of models.
      </p>
    );
  const served = model.versions.find((one) => one.state === "AVAILABLE");
  if (!served) return null;
  if (!model.folders.some((one) => one < served.version)) return <p class="faint">There is no older version to go back to.</p>;
  const folder = `${model.base_path}/`;
  return (
    <p class="faint">
      To go back to an older version: {hasAdmin ? <>Roll back on the {adminPage} or </> : null}
      rename the folder of version {served.version} to a name that is no number
      {model.base_path ? <>: <code>mv {folder}{served.version} {folder}.{served.version}</code></> : "."}
    </p>
  );
}

/** Tells how much of a table is in memory. */
function inMemory({ mapped_bytes, resident_bytes }: TableStatus): string {
  // The kernel counts whole pages, which a small table does not fill.
  const isWhole = resident_bytes === null || resident_bytes >= mapped_bytes;
  return isWhole ? bytes(mapped_bytes) : `${bytes(resident_bytes)} of ${bytes(mapped_bytes)}`;
}

function ModelCard(props: {
  model: Model;
  problem: string;
  details: VersionStatus[];
  nowS: number;
  /** The setting --admin_port; undefined if the caller may not see it. */
  adminPort: unknown;
  hasLinks: boolean;
  /** The card shows its body when it is asked for. */
  isFolded: boolean;
}): JSX.Element {
  const { model, problem, details } = props;
  const labels = (version: number): string =>
    Object.entries(model.labels)
      .filter(([, one]) => one === version)
      .map(([label]) => label)
      .join(", ");
  const detail = (version: number): VersionStatus | undefined => details.find((one) => one.version === version);
  const tables = details.flatMap((one) => (one.tables ?? []).map((table) => ({ ...table, version: one.version })));
  const isSampled = tables.some((one) => one.reads !== null);
  const notRun = details.flatMap((one) => Object.entries(one.not_run ?? {}).map(([name, reason]) => ({ version: one.version, name, reason })));
  // The version that answers, and the newest one if that is another.
  const told = [...new Set([model.versions.find((one) => one.state === "AVAILABLE"), model.versions[0]])].filter((one) => one !== undefined);
  const body = (
    <>
      {problem ? <p class="problem">{problem}</p> : null}
      <More
        label={`Versions of ${model.name}`}
        most={SHOWN_STATES}
        rows={model.versions}
        columns={[
          { name: "version", isNumber: true, cell: (one) => one.version },
          { name: "state", cell: (one) => <Badge state={one.state} isBad={one.code !== "OK"} /> },
          { name: "since", cell: (one) => <Since model={model} version={one} /> },
          { name: "labels", tip: "names that requests may use in place of the version's number", cell: (one) => labels(one.version) },
          { name: "in flight", tip: "requests that run now", isNumber: true, cell: (one) => detail(one.version)?.in_flight ?? "" },
          {
            name: "signatures",
            cell: (one) => {
              const names = Object.keys(detail(one.version)?.signatures ?? {});
              if (!props.hasLinks || one.state !== "AVAILABLE") return names.join(", ");
              return (
                <span>
                  {(names.length ? names : [""]).map((name, at) => (
                    <>
                      {at ? ", " : ""}
                      <a href={address("try", { model: model.name, version: String(one.version), signature: name })}>{name || "try"}</a>
                    </>
                  ))}
                </span>
              );
            },
          },
        ]}
      />
      <RollBack model={model} adminPage={<AdminPage isHere={!props.hasLinks} port={props.adminPort} />} hasAdmin={props.adminPort !== 0} />
      {model.versions
        .filter((one) => one.message && !problem.includes(one.message))
        .map((one) => (
          <p key={one.version} class="problem">
            version {one.version}: {one.code}: {one.message}
          </p>
        ))}
      {notRun.length ? (
        <details>
          <summary>Signatures that no request can run: {notRun.length}</summary>
          <Grid
            label={`Signatures of ${model.name} that are not run`}
            rows={notRun}
            columns={[
              { name: "version", isNumber: true, cell: (one) => one.version },
              { name: "signature", cell: (one) => one.name },
              { name: "reason", cell: (one) => one.reason },
            ]}
          />
        </details>
      ) : null}
      {model.history.length ? (
        <Folded summary="States of the versions over time">
          <TimeLine model={model} nowS={props.nowS} />
        </Folded>
      ) : null}
      {tables.length ? (
        <Folded summary={`Tables: ${tables.length}`}>
        <Grid
          label={`Tables of ${model.name}`}
          rows={tables}
          columns={[
            {
              name: "table",
              cell: (one) =>
                props.hasLinks ? (
                  <a href={address("tables", { model: model.name, version: String(one.version), table: one.table })}>{one.table}</a>
                ) : (
                  one.table
                ),
            },
            { name: "version", isNumber: true, cell: (one) => one.version },
            { name: "size (rows)", isNumber: true, cell: (one) => shown(one.rows) },
            { name: "dimension", isNumber: true, cell: (one) => one.dim },
            { name: "dtype", cell: (one) => one.dtype },
            {
              name: "in memory",
              tip: "bytes of the table that are in memory now, of the bytes in its file, from which the rest is read when a request needs it",
              isNumber: true,
              cell: (one) => inMemory(one),
            },
            isSampled
              ? { name: "reads", tip: READS, isNumber: true, cell: (one) => (one.reads === null ? "not sampled" : shown(one.reads)) }
              : { name: "ids of lookups", isNumber: true, cell: (one) => shown(one.ids ?? 0) },
            {
              name: "unknown ids",
              tip: "of the ids in lookups, without predictions, those that have no row; reads count neither them nor refused requests",
              isNumber: true,
              cell: (one) => (one.ids ? `${shown(one.missing_ids ?? 0)} of ${shown(one.ids)}` : "–"),
            },
            {
              name: "unknown keys",
              tip: "keys in lookups that are in no vocabulary",
              isNumber: true,
              cell: (one) => (one.ids || one.oov_keys ? shown(one.oov_keys ?? 0) : "–"),
            },
          ]}
        />
        </Folded>
      ) : null}
    </>
  );
  return (
    <section class="card" aria-label={`Model ${model.name}`}>
      {props.isFolded ? (
        <details open={problem !== ""}>
          <summary>
            <h2>{model.name}</h2>
            {told.map((one) => (
              <span key={one.version} class="whole">
                {one.version} <Badge state={one.state} isBad={one.code !== "OK"} />{" "}
              </span>
            ))}
          </summary>
          {body}
        </details>
      ) : (
        <>
          <h2>{model.name}</h2>
          {body}
        </>
      )}
    </section>
  );
}

const LAST_ERRORS = "last-errors";
const SHOWN_REASONS = 3;
const SHOWN_CLIENTS = 3;
// The server cuts longer messages to this.
const MAX_MESSAGE = 1000;

interface Group extends Noted {
  count: number;
  /** Their texts differ in numbers or quoted values. */
  isVaried: boolean;
  firstS: number;
  models: Set<string>;
  /** How many requests each client sent. */
  clients: Map<string, number>;
}

/** Joins failed requests with equal code, call and message, but for its numbers and quoted values; the newest of them stands for all. */
function grouped(errors: Noted[], byModel: boolean): Group[] {
  const found = new Map<string, Group>();
  for (const one of errors) {
    const key = JSON.stringify([byModel && one.model, one.code, callOf(one), one.message.replace(/"[^"]*"|-?\d[\d.,]*/g, "…")]);
    const known = found.get(key);
    const clients = known?.clients ?? new Map<string, number>();
    clients.set(one.client, (clients.get(one.client) ?? 0) + 1);
    if (known) {
      known.models.add(one.model);
      const isVaried = known.isVaried || known.message !== one.message;
      Object.assign(known, { count: known.count + 1, firstS: Math.min(known.firstS, one.at_s), isVaried });
    } else found.set(key, { ...one, count: 1, firstS: one.at_s, isVaried: false, models: new Set([one.model]), clients });
  }
  return [...found.values()];
}

/** Names what a request called, such as "HTTP lookup". */
function callOf({ api, method }: Noted): string {
  return `${api === "grpc" ? "gRPC" : "HTTP"} ${method}`.trim();
}

/** Names the clients that sent most of some requests, with their numbers where there are several clients. */
function clientsOf({ clients, count }: Pick<Group, "clients" | "count">): string {
  const most = [...clients].sort((a, b) => b[1] - a[1]);
  const named = most.slice(0, SHOWN_CLIENTS).map(([client, sent]) => `${client || "–"}${sent < count ? ` (${shown(sent)})` : ""}`);
  return [...named, ...(most.length > SHOWN_CLIENTS ? [`${shown(most.length - SHOWN_CLIENTS)} more`] : [])].join(", ");
}

/** An error's text, with the names of models where one is not known. */
function Message({ one, models }: { one: Group; models: string[] }): JSX.Element {
  return (
    <>
      {one.isVaried ? <span class="faint">such as: </span> : null}
      {one.message}
      {one.message.length < MAX_MESSAGE ? "" : " …"}
      {one.code === "NOT_FOUND" && !one.model && one.message.startsWith("Servable") && !one.message.includes("; models: ") ? <span class="faint"> The models here: {models.join(", ") || "none"}.</span> : null}
    </>
  );
}

/** How many requests failed in the last minutes, with a link to the reasons. */
function Failures({ statusz, models }: { statusz: Statusz; models: string[] }): JSX.Element {
  const { counts, seconds } = statusz.recent_failures;
  const all = counts.reduce((sum, one) => sum + one.requests, 0);
  const since = `in the last ${seconds / 60} minutes`;
  const recent = statusz.last_errors.filter((one) => one.at_s > nowS() - seconds);
  const clients = new Map<string, number>();
  for (const { client } of recent) clients.set(client, (clients.get(client) ?? 0) + 1);
  const often = grouped(recent, false).sort((a, b) => b.count - a.count).slice(0, SHOWN_REASONS);
  if (!all) return <p class="faint">No request failed {since}.</p>;
  return (
    <>
      <p class="problem">
        {shown(all)} {all === 1 ? "request" : "requests"} failed {since}.{" "}
        <a
          href={address("")}
          onClick={(event) => {
            event.preventDefault();
            document.getElementById(LAST_ERRORS)?.focus();
          }}
        >
          Last errors
        </a>{" "}
        say which and why{counts.some((one) => one.code.startsWith("refused")) ? ", but for those refused for load" : ""}.
      </p>
      <Folded summary="By model and code">
        <Grid
          label={`Requests that failed ${since}`}
          rows={counts.slice(0, SHOWN_FAILURES)}
          columns={[
            { name: "model", cell: (one) => modelName(one.model) },
            { name: "code", cell: (one) => one.code },
            { name: "failed requests", isNumber: true, cell: (one) => shown(one.requests) },
          ]}
        />
      </Folded>
      {often.length ? <p class="faint">Of the {recent.length} newest, by client: {clientsOf({ clients, count: Infinity })}. By reason:</p> : null}
      <ul aria-label="What failed most">
        {often.map((one) => (
          <li key={one.request_id}>
            {shown(one.count)} × {callOf(one)}, {listed([...one.models].map(modelName))}: <Message one={one} models={models} />
          </li>
        ))}
      </ul>
      {recent.length > often.reduce((sum, one) => sum + one.count, 0) ? <p class="faint">The others are under Last errors.</p> : null}
      {counts.length > SHOWN_FAILURES ? <p class="faint">{counts.length - SHOWN_FAILURES} more lines are under recent_failures in /v1/statusz.</p> : null}
      {counts.slice(0, SHOWN_FAILURES).some((one) => !one.model) ? <p class="faint">{UNKNOWN_MODEL}</p> : null}
    </>
  );
}

interface Joined {
  models: string[];
  message: string;
  alert: string;
}

/** Joins the models with equal problems; those with an alert rule come first. */
function joined(attention: Statusz["attention"]): Joined[] {
  const found = new Map<string, Joined>();
  for (const { model, message, alert } of attention) {
    const key = JSON.stringify([message, alert, model === ""]);
    const known = found.get(key);
    if (known) known.models.push(model);
    else found.set(key, { models: [model], message, alert });
  }
  return [...found.values()].sort((a, b) => Number(a.alert === "") - Number(b.alert === ""));
}

/** Lists the first names, and how many more there are. */
function listed(names: string[]): string {
  const rest = names.length - SHOWN_NAMES;
  return rest > 0 ? `${names.slice(0, SHOWN_NAMES).join(", ")} and ${shown(rest)} more` : names.join(", ");
}

function Attention({ statusz, models }: { statusz: Statusz; models: string[] }): JSX.Element {
  return (
    <section class="card" aria-label="Needs attention">
      <h2>Needs attention</h2>
      {statusz.attention.length ? (
        <Grid
          label="What needs attention"
          rows={joined(statusz.attention)}
          columns={[
            { name: "model", cell: (one) => listed(one.models) || "this server" },
            { name: "what", cell: (one) => <span class="problem">{one.message}</span> },
            { name: "alert rule", cell: (one) => one.alert },
          ]}
        />
      ) : statusz.recent_failures.counts.length ? null : (
        <p class="faint">Nothing now.</p>
      )}
      <Failures statusz={statusz} models={models} />
    </section>
  );
}

/** Writes the value of a setting, bytes with their unit; what 0 bytes mean differs. */
function settingText(name: string, value: unknown): string {
  if (typeof value === "number" && value && name.endsWith("_bytes")) return bytes(value);
  if (name === "load_timeout_s" && value === 0) return "no limit";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function Settings(props: { label: string; summary: string; settings: [string, Setting][] }): JSX.Element {
  return (
    <details>
      <summary>{props.summary}</summary>
      <Grid
        label={props.label}
        rows={props.settings}
        columns={[
          { name: "setting", cell: ([name]) => <span class="whole">--{name}</span> },
          { name: "value", isNumber: true, cell: ([name, one]) => settingText(name, one.value) },
          ...(props.settings.some(([, one]) => one.is_default) ? [{ name: "is default", cell: ([, one]: [string, Setting]) => (one.is_default ? "yes" : "no") }] : []),
        ]}
      />
    </details>
  );
}

function Limits({ statusz }: { statusz: Statusz }): JSX.Element {
  const limits = Object.entries(statusz.settings).filter(([name]) => name.startsWith("max_") || name.endsWith("_timeout_s"));
  const refused = statusz.overload.models.flatMap((one) => Object.entries(one.refused).map(([reason, count]) => ({ ...one, reason, count })));
  return (
    <section class="card" aria-label="Limits">
      <h2>Limits</h2>
      {refused.length ? (
        <Grid
          label="Refused requests"
          rows={refused}
          columns={[
            { name: "model", cell: (one) => modelName(one.model) },
            { name: "refused because of", cell: (one) => one.reason },
            { name: "requests", isNumber: true, cell: (one) => shown(one.count) },
          ]}
        />
      ) : (
        <p class="faint">No request was refused for lack of room. Requests that are too large are among the last errors.</p>
      )}
      <Settings label="Settings of limits" summary={`${limits.length} settings`} settings={limits} />
    </section>
  );
}

/** What an operator looks up now and then: slow requests, request logs, and settings that differ from their defaults. */
function ServerDetails({ statusz }: { statusz: Statusz }): JSX.Element {
  const { slow_request_s: slowS } = statusz.server;
  const logs = Object.entries(statusz.request_logs);
  const changed = Object.entries(statusz.settings).filter(([, one]) => !one.is_default);
  const ms = (seconds: number): string => shown(seconds * 1000, 3);
  return (
    <section class="card" aria-label="Server">
      <h2>Server</h2>
      {slowS === null ? <p class="faint">No request counts as slow: --slow_request_ms is 0.</p> : null}
      {statusz.slow_requests.length ? (
        <details>
          <summary>
            Requests slower than {ms(slowS ?? 0)} ms: {statusz.slow_requests.length}
          </summary>
          <Grid
            label="Slow requests"
            rows={statusz.slow_requests}
            columns={[
              { name: "at", cell: (one) => <Ago atS={one.at_s} /> },
              { name: "client", cell: (one) => one.client },
              { name: "model", cell: (one) => modelName(one.model) },
              { name: "signature", cell: (one) => one.signature },
              { name: "rows", isNumber: true, cell: (one) => shown(one.rows) },
              { name: "time (ms)", isNumber: true, cell: (one) => ms(one.seconds) },
              { name: "of it run (ms)", isNumber: true, cell: (one) => ms(one.run_seconds) },
              { name: "request id", cell: (one) => <code>{one.request_id}</code> },
            ]}
          />
        </details>
      ) : slowS === null ? null : (
        <p class="faint">No request was slower than {ms(slowS)} ms.</p>
      )}
      {logs.length ? (
        <details>
          <summary>Request logs: {logs.length}</summary>
          <Grid
            label="Request logs"
            rows={logs}
            columns={[
              { name: "model", cell: ([model]) => model },
              { name: "files", cell: ([, log]) => <code>{log.prefix}</code> },
              { name: "sampled", isNumber: true, cell: ([, log]) => `${shown(log.sampling_rate * 100, 3)} %` },
              { name: "written", isNumber: true, cell: ([, log]) => shown(log.written) },
              { name: "dropped", isNumber: true, cell: ([, log]) => shown(log.dropped) },
              { name: "state", cell: ([, log]) => <Badge state={log.is_disabled ? "ended by an error" : "ready"} isBad={log.is_disabled} /> },
            ]}
          />
        </details>
      ) : null}
      <Settings label="Changed settings" summary={`Changed settings: ${changed.length}`} settings={changed} />
    </section>
  );
}

/** hasLinks: the port that the page came from has the other pages too. */
export function OverviewPage({ overview, hasLinks }: { overview: Overview; hasLinks: boolean }): JSX.Element {
  const statusz = useLoad("statusz", (signal) => get<Statusz>("/v1/statusz", signal), 5000);
  const data = statusz.data;
  const names = overview.models.map((model) => model.name);
  const hasData = data !== undefined;
  useEffect(() => {
    // A link of the page Traffic leads to the last errors.
    if (hasData && readAddress().params["show"] === LAST_ERRORS) document.getElementById(LAST_ERRORS)?.focus();
  }, [hasData]);
  return (
    <>
      <h1 tabIndex={-1}>Overview</h1>
      <dl class="card">
        <div>
          <dt>server</dt>
          <dd>
            <Badge state={overview.server.is_ready ? "ready" : overview.server.is_draining ? "shutting down" : "not ready"} isBad={!overview.server.is_ready} />
          </dd>
        </div>
        <div>
          <dt>release</dt>
          <dd>{overview.server.version}</dd>
        </div>
        {data ? (
          <>
            <div>
              <dt>up for</dt>
              <dd>{duration(data.server.uptime_s)}</dd>
            </div>
            <div>
              <dt title="what answers lookups and predictions: the core in Rust, or the slower reference server in Python">answered by</dt>
              <dd>{data.data_plane.kind === "native" ? "native core" : data.data_plane.kind}</dd>
            </div>
            {data.server.rss_bytes ? (
              <div>
                <dt title="of the whole process: Python, libraries and graphs, beside the tables below">memory of the process</dt>
                <dd>{bytes(data.server.rss_bytes)}</dd>
              </div>
            ) : null}
          </>
        ) : null}
      </dl>
      {data ? <Attention statusz={data} models={names} /> : null}
      {overview.models.length ? null : <NoModel />}
      {overview.models.map((model) => (
        <ModelCard
          key={model.name}
          model={model}
          problem={overview.problems[model.name] ?? ""}
          details={data?.models[model.name]?.versions ?? []}
          nowS={nowS()}
          adminPort={data?.settings["admin_port"]?.value}
          hasLinks={hasLinks}
          isFolded={overview.models.length > SHOWN_MODELS}
        />
      ))}
      <Status of={statusz} what="tables, limits and errors" />
      {data ? (
        <>
          <Limits statusz={data} />
          <section class="card" aria-label="Last errors">
            <h2 id={LAST_ERRORS} tabIndex={-1}>
              Last errors
            </h2>
            {data.last_errors.length ? (
              <>
                <p class="faint">
                  The last {data.last_errors.length} failed requests that the server keeps; those that differ only in numbers or quoted values are one line.
                  <span class="pointer"> Point at a time to see it exactly.</span> Requests that were refused for lack of room are under Limits, not here.{" "}
                  {String(data.settings["log_level"]?.value).match(/warning|error/)
                    ? `The log has no lines on clients' mistakes, because of --log_level=${String(data.settings["log_level"]?.value)}.`
                    : "The server's log, on its standard error, has a line with the request id for each, unless there are more than 20 a second."}
                </p>
                <More
                  label="Failed requests"
                  most={SHOWN_ERRORS}
                  rows={grouped(data.last_errors, true)}
                  columns={[
                    { name: "last at", cell: (one) => <Ago atS={one.at_s} /> },
                    { name: "first at", cell: (one) => <Ago atS={one.firstS} /> },
                    { name: "requests", isNumber: true, cell: (one) => shown(one.count) },
                    { name: "call", cell: (one) => <span class="short">{callOf(one)}</span> },
                    { name: "client", tip: "the caller's name, or the address of a client that is no known caller; with the number of its requests if there are several clients", cell: (one) => <span class="short">{clientsOf(one)}</span> },
                    { name: "model", cell: (one) => modelName(one.model) },
                    { name: "code and message", cell: (one) => <span class="word"><b>{one.code}</b> <Message one={one} models={names} /></span> },
                    { name: "last request id", cell: (one) => <code>{one.request_id}</code> },
                  ]}
                />
              </>
            ) : (
              <p class="faint">No request has failed.</p>
            )}
          </section>
          <ServerDetails statusz={data} />
        </>
      ) : null}
    </>
  );
}
