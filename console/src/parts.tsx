// Parts that several pages show.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Hot, Model, State, Table, get, modelPath, nowS } from "./api";
import { Loaded, Params, address, setParams, useLoad } from "./hooks";

/** Writes a number for people; "not finite" for a JSON null. */
export function shown(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return "not finite";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(digits)));
}

/** Writes the numbers of one column with the decimals of the largest, but with `least`, so that the eye can compare them. */
export function column(values: (number | null | undefined)[], digits = 4, absent = "not finite", least = 0): string[] {
  const finite = values.filter((value): value is number => value !== null && value !== undefined);
  const largest = Math.max(...finite.map(Math.abs), 0);
  const isWhole = finite.every(Number.isInteger);
  const decimals = isWhole || !largest ? 0 : Math.min(Math.max(digits - 1 - Math.floor(Math.log10(largest)), least), digits);
  return values.map((value) =>
    value === null || value === undefined ? absent : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }),
  );
}

/** Writes a number of bytes with its unit. */
export function bytes(count: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${Number(count.toPrecision(4))} ${units[unit]}`;
}

/** Writes a length of time in its two largest units. */
export function duration(seconds: number): string {
  const whole = Math.floor(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** Writes a time since 1970 in the browser's zone, such as 2026-11-28 14:05:09. */
export function time(seconds: number): string {
  return new Date(seconds * 1000).toLocaleString("sv-SE");
}

/** Writes a time as time() does, without the date of today. */
export function clock(seconds: number): string {
  const [date, told] = time(seconds).split(" ");
  return time(nowS()).startsWith(date ?? "") ? (told ?? "") : `${date} ${told}`;
}

const UNITS: [string, number][] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Writes how long ago a time was, in its largest unit. */
export function ago(atS: number): string {
  const seconds = nowS() - atS;
  const [unit, size] = UNITS.find(([, one]) => seconds >= one) ?? ["", 0];
  return size ? `${Math.floor(seconds / size)} ${unit} ago` : "now";
}

/** How long ago a time was; the pointer shows the time itself. */
export function Ago({ atS }: { atS: number }): JSX.Element {
  return (
    <time dateTime={new Date(atS * 1000).toISOString()} title={time(atS)} data-at={clock(atS)}>
      {ago(atS)}
    </time>
  );
}

/** Names a row of a table for people: by its label, else its key. */
export function nameOf(row: { id: number; label?: string | null; key?: unknown }, table: Table | undefined): string {
  const hasKey = row.key !== null && row.key !== undefined && typeof row.key !== "object";
  const isUnknown = table?.unknown_key_rows.some(([first, last]) => row.id >= first && row.id <= last);
  return row.label ?? (hasKey ? String(row.key) : isUnknown ? "(unknown keys)" : "");
}

/** What the word "reads" means on all pages. */
export const READS = "rows that lookups and predictions read since the version was loaded; a request may read a row more than once";

/** Says of how many reads the hot rows are. */
export function hotNote(hot: Hot): string {
  const since = `by lookups and predictions since version ${hot.version} was loaded`;
  if (!hot.lookups) return `No row was read ${since}.`;
  if (hot.sampled === hot.lookups) return `${shown(hot.lookups)} ${hot.lookups === 1 ? "read" : "reads"} ${since}, all of them counted.`;
  return `About ${shown(hot.lookups)} reads ${since}, estimated from ${shown(hot.sampled)} of them.`;
}

/** What modelName() of "" means. */
export const UNKNOWN_MODEL = "“unknown model”: requests that name no model of this server, or that were refused before their model was looked up.";

/** Names the model of a request. */
export function modelName(name: string): string {
  return name || "unknown model";
}

/** Names the page Admin, with a link if this browser can reach it. isHere: on the port of this page; port: --admin_port. */
export function AdminPage({ isHere, port }: { isHere: boolean; port: unknown }): JSX.Element {
  if (isHere) return <a href={address("admin")}>page Admin</a>;
  const isOwn = /^(localhost|127\..*|\[::1\])$/.test(location.hostname) && typeof port === "number";
  const place = `${location.protocol}//${location.hostname}:${port}/console${address("admin")}`;
  return (
    <>
      {isOwn ? <a href={place}>page Admin</a> : "page Admin"} of the admin port{typeof port === "number" ? `, ${port} on the server's machine,` : ""}
    </>
  );
}

export function Badge({ state, isBad = false }: { state: State | string; isBad?: boolean }): JSX.Element {
  const kind = isBad ? "bad" : state === "AVAILABLE" || state === "ready" ? "good" : "plain";
  return <span class={`badge ${kind}`}>{state}</span>;
}

export function Problem({ error }: { error: Error | undefined }): JSX.Element | null {
  return error ? (
    <p class="problem" role="alert">
      {error.message}
    </p>
  ) : null;
}

/** Says that there is no model, and how to get one. */
export function NoModel(): JSX.Element {
  return (
    <p class="card">
      This server has no model that you may see. Start it with a folder of models, or add a model to the list that --model_config_file names.
    </p>
  );
}

/** Says that a link leads to something that is not there. */
export function Wrong({ what }: { what: string }): JSX.Element {
  return (
    <p class="problem" role="alert">
      Broken link: {what}
    </p>
  );
}

export function Status({ of, what }: { of: Loaded<unknown>; what: string }): JSX.Element | null {
  if (of.error) return <Problem error={of.error} />;
  return of.isLoading ? (
    <p class="faint" role="status">
      Loading {what} …
    </p>
  ) : null;
}

/** A region that scrolls sideways, also by keyboard. */
export function Wide({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return (
    <div class="wide" role="region" aria-label={label} tabIndex={0}>
      {children}
    </div>
  );
}

/** A phone: a page there is one narrow column. */
export const IS_PHONE = innerWidth <= 600;

/** A part of a page that a phone shows when it is asked for, and a wide window at once. */
export function Folded({ summary, children }: { summary: string; children: ComponentChildren }): JSX.Element {
  if (!IS_PHONE) return <>{children}</>;
  return (
    <details>
      <summary>{summary}</summary>
      {children}
    </details>
  );
}

export interface Column<T> {
  name: string;
  /** What the name means, as a tip. */
  tip?: string;
  isNumber?: boolean;
  cell: (row: T) => ComponentChildren;
}

export function Grid<T>(props: { label: string; columns: Column<T>[]; rows: T[]; isChosen?: (row: T) => boolean }): JSX.Element {
  const { label, columns, rows, isChosen } = props;
  return (
    <Wide label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={column.isNumber ? "number" : ""} title={column.tip}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={at} aria-current={isChosen?.(row) ? "true" : undefined}>
              {columns.map((column) => (
                <td key={column.name} class={column.isNumber ? "number" : ""} data-name={column.name}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </Wide>
  );
}

export function Select(props: {
  label: string;
  value: string;
  options: (string | [string, string])[];
  onChange: (value: string) => void;
}): JSX.Element {
  const known = props.options.map((one) => (typeof one === "string" ? ([one, one] as [string, string]) : one));
  const isKnown = known.some(([value]) => value === props.value);
  return (
    <label class="field">
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {isKnown ? null : <option value={props.value}>{props.value || "none"}</option>}
        {known.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A chosen model, version and table. */
export interface Choice {
  /** What the address asks for that is not there; "" for nothing. */
  wrong: string;
  model: string;
  version: string;
  tables: Table[];
  table: Table | undefined;
}

/** The model that the address names, else the first one that can answer. */
export function chosenModel(models: Model[], params: Params): Model | undefined {
  const isServed = (model: Model): boolean => model.versions.some((one) => one.state === "AVAILABLE");
  return models.find((one) => one.name === params["model"]) ?? models.find(isServed) ?? models[0];
}

/** Tells what the address asks for that the server does not have: a model, or an AVAILABLE version; "" for nothing. */
export function wrongModel(models: Model[], params: Params): string {
  const [name, version] = [params["model"] ?? "", params["version"] ?? ""];
  if (name && models.every((one) => one.name !== name)) return `There is no model “${name}”.`;
  const model = chosenModel(models, params);
  const isServed = model?.versions.some((one) => String(one.version) === version && one.state === "AVAILABLE");
  return version && !isServed ? `Version ${version} of “${model?.name}” is not AVAILABLE.` : "";
}

/** Selects a model, one of its versions and a table; keeps all three in the address. */
export function useTables(models: Model[], params: Params): { choice: Choice; loaded: Loaded<Table[]> } {
  const model = chosenModel(models, params);
  const asked = params["version"] ?? "";
  const name = model?.name ?? "";
  const available = model?.versions.filter((one) => one.state === "AVAILABLE").map((one) => String(one.version)) ?? [];
  const version = available.includes(asked) ? asked : "";
  const loaded = useLoad(`${name}/${version || (available[0] ?? "")}`, async (signal) => {
    if (!name) return [];
    return (await get<{ tables: Table[] }>(`${modelPath(name, version)}/tables`, signal)).tables;
  });
  const tables = loaded.data ?? [];
  const wanted = params["table"] ?? "";
  const table = tables.find((one) => one.name === wanted);
  const wrong = wrongModel(models, params) || (wanted && loaded.data && !table ? `Model “${name}” has no table “${wanted}”.` : "");
  return { choice: { wrong, model: name, version, tables, table: table ?? tables[0] }, loaded };
}

/** Parameters of the address of a row. */
export function rowParams(choice: Choice, id: number): Record<string, string> {
  return { model: choice.model, version: choice.version, table: choice.table?.name ?? "", id: String(id) };
}

/** The columns that name a row, both with a link to it; none for the names if no row has one. more: further parameters of the link. */
export function rowColumns<T extends { id: number; label?: string | null; key?: unknown }>(choice: Choice, rows: T[], more: Params = {}): Column<T>[] {
  const link = (row: T, text: string | number): JSX.Element => <a href={address("tables", { ...rowParams(choice, row.id), ...more })}>{text}</a>;
  const ids: Column<T> = { name: "row", isNumber: true, cell: (row) => link(row, row.id) };
  const names: Column<T> = { name: "name", cell: (row) => link(row, nameOf(row, choice.table) || "(no name)") };
  return rows.some((row) => nameOf(row, choice.table)) ? [ids, names] : [ids];
}

// Parameters of the address that belong to one table.
const OF_TABLE: Params = { id: "", find: "", start: "", text: "", since: "" };

export function TableChoice({ models, choice, loaded }: { models: Model[]; choice: Choice; loaded: Loaded<Table[]> }): JSX.Element {
  const versions = models.find((one) => one.name === choice.model)?.versions ?? [];
  return (
    <>
    {choice.wrong ? <Wrong what={choice.wrong} /> : null}
    <div class="fields">
      <Select
        label="Model"
        value={choice.model}
        options={models.map((one) => one.name)}
        onChange={(model) => setParams({ ...OF_TABLE, model, version: "", table: "" })}
      />
      <Select
        label="Version"
        value={choice.version}
        options={[
          ["", "latest"],
          ...versions
            .filter((one) => one.state === "AVAILABLE")
            .map((one): [string, string] => [String(one.version), String(one.version)]),
        ]}
        onChange={(version) => setParams({ version })}
      />
      <Select
        label="Table"
        value={choice.table?.name ?? ""}
        options={choice.tables.map((one): [string, string] => [
          one.name,
          `${one.name} (${one.vocabulary_size.toLocaleString("en")} × ${one.embedding_dim}, ${one.dtype})`,
        ])}
        onChange={(table) => setParams({ ...OF_TABLE, table })}
      />
    </div>
    <Status of={loaded} what="tables" />
    {loaded.data && choice.model && !choice.tables.length ? (
      <p class="faint">The server knows no tables of this model: it has no lookup manifest (<code>model-export adopt</code> writes one).</p>
    ) : null}
    </>
  );
}

/** A button that asks before it acts, in a dialog of the browser's own. */
export function Confirmed(props: {
  label: string;
  question: string;
  isDisabled?: boolean;
  act: () => Promise<void>;
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [isBusy, setBusy] = useState(false);
  const answer = async (): Promise<void> => {
    setBusy(true);
    try {
      await props.act();
    } finally {
      setBusy(false);
      dialog.current?.close();
    }
  };
  return (
    <>
      <button type="button" disabled={props.isDisabled} onClick={() => dialog.current?.showModal()}>
        {props.label}
      </button>
      <dialog ref={dialog} aria-label={props.label}>
        <p>{props.question}</p>
        <div class="fields">
          <button type="button" class="main" disabled={isBusy} onClick={() => void answer()}>
            Yes, {props.label.toLowerCase()}
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
        </div>
      </dialog>
    </>
  );
}

/** A text with a button that copies it. */
export function Copied({ label, text }: { label: string; text: string }): JSX.Element {
  const [told, setTold] = useState("");
  useEffect(() => setTold(""), [text]);
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setTold("copied");
    } catch {
      setTold("select the text to copy it");
    }
  };
  return (
    <section class="copied">
      <header>
        <h3>{label}</h3>
        <button type="button" aria-label={`Copy ${label}`} onClick={() => void copy()}>
          Copy
        </button>
        <span role="status">{told}</span>
      </header>
      <pre tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
    </section>
  );
}

/** A table whose later rows are folded. */
export function More<T>({ most, ...grid }: { label: string; columns: Column<T>[]; rows: T[]; most: number }): JSX.Element {
  const rest = grid.rows.slice(most);
  return (
    <>
      <Grid {...grid} rows={grid.rows.slice(0, most)} />
      {rest.length ? (
        <details>
          <summary>{rest.length} more</summary>
          <Grid {...grid} label={`${grid.label}, further ones`} rows={rest} />
        </details>
      ) : null}
    </>
  );
}
