// Table explorer: pages of rows, a row by id, key or label, hot rows.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Hot, Overview, Page, Refusal, get, tablePath } from "../api";
import { Loaded, Params, address, setParams, useLoad } from "../hooks";
import { Choice, Grid, IS_PHONE, READS, Status, TableChoice, column, hotNote, rowColumns, rowParams, shown, useTables } from "../parts";
import { RowPanel } from "../row";

// A phone shows a row of a table as a block of lines.
const PAGE_ROWS = IS_PHONE ? 20 : 50;
const HOT_ROWS = IS_PHONE ? 5 : 20;
const FOUND_ROWS = 20;
// As often as on the page Traffic.
const HOT_MS = 2000;

function Rows({ choice, params }: { choice: Choice; params: Params }): JSX.Element {
  const start = Number(params["start"] ?? 0) || 0;
  const table = choice.table?.name ?? "";
  const path = tablePath(choice.model, choice.version, table, `:page?start=${start}&count=${PAGE_ROWS}`);
  const loaded = useLoad(path, (signal) => get<Page>(path, signal));
  const page = loaded.data;
  const total = page?.total ?? 0;
  const rows = column(page?.norms ?? []).map((norm, at) => ({ id: start + at, norm, key: page?.keys[at], label: page?.labels[at] ?? null }));
  return (
    <section class="card" aria-label="Rows">
      <h2>Rows</h2>
      <Status of={loaded} what="rows" />
      {page ? (
        <>
          <Grid
            label="Rows of the table"
            isChosen={(row) => String(row.id) === params["id"]}
            rows={rows}
            columns={[
              ...rowColumns(choice, rows, { start: String(start) }),
              { name: "norm", isNumber: true, cell: (row) => row.norm },
            ]}
          />
          <div class="fields">
            <button type="button" disabled={start === 0} onClick={() => setParams({ start: String(Math.max(start - PAGE_ROWS, 0)) })}>
              Previous
            </button>
            <span>
              {start} to {Math.min(start + PAGE_ROWS, total) - 1} of {total.toLocaleString("en")}
            </span>
            <button
              type="button"
              disabled={start + PAGE_ROWS >= total}
              onClick={() => setParams({ start: String(start + PAGE_ROWS) })}
            >
              Next
            </button>
          </div>
        </>
      ) : null}
    </section>
  );
}

function HotRows({ choice, id }: { choice: Choice; id: string }): JSX.Element {
  const path = tablePath(choice.model, choice.version, choice.table?.name ?? "", `:hot?k=${HOT_ROWS}`);
  const loaded = useLoad(path, (signal) => get<Hot>(path, signal), HOT_MS);
  const hot = loaded.data?.rows ?? [];
  const shares = column(hot.map((row) => row.share * 100), 3);
  const rows = hot.map((row, at) => ({ ...row, percent: shares[at] }));
  const isUnsampled = loaded.error instanceof Refusal && loaded.error.status === 501;
  return (
    <section class="card" aria-label="Hot rows">
      <h2>Hot rows</h2>
      {isUnsampled ? <p class="faint">{loaded.error?.message}</p> : <Status of={loaded} what="hot rows" />}
      {loaded.data ? (
        <p class="faint">
          {hotNote(loaded.data)}
        </p>
      ) : null}
      <Grid
        label="Rows that are read most"
        rows={rows}
        isChosen={(row) => String(row.id) === id}
        columns={[
          ...rowColumns(choice, rows),
          { name: "reads", tip: READS, isNumber: true, cell: (row) => shown(row.lookups) },
          { name: "share", isNumber: true, cell: (row) => `${row.percent} %` },
        ]}
      />
    </section>
  );
}

function Find({ text }: { text: string }): JSX.Element {
  const [typed, setTyped] = useState(text);
  // A link to another search leads here, too.
  useEffect(() => {
    if (text) setTyped(text);
  }, [text]);
  return (
    <form
      class="fields"
      aria-label="Find a row"
      onSubmit={(event) => {
        event.preventDefault();
        setParams({ find: typed.trim(), id: "" });
      }}
    >
      <label class="field">
        <span>Label, key or row id</span>
        <input
          type="search"
          required
          value={typed}
          onInput={(event) => {
            setTyped(event.currentTarget.value);
            // What was found, or not, belongs to the text that was searched for.
            setParams({ find: "" });
          }}
        />
      </label>
      <button class="main">Find</button>
    </form>
  );
}

interface FoundRow {
  id: number;
  label: string | null;
  by: string;
}

/** The rows that the searched text may mean. */
function Found({ choice, text, found }: { choice: Choice; text: string; found: Loaded<FoundRow[]> }): JSX.Element {
  return (
    <section class="card" aria-label="Found rows">
      <h2>{found.data && !found.data.length ? "No row" : "Found"} for “{text}”</h2>
      <Status of={found} what="rows" />
      {found.data && !found.data.length ? (
        <p class="faint">
          No row of this table has it as its id or key, or in its label.
          {choice.table && /^-?\d+$/.test(text) ? ` This table has ids 0 to ${shown(choice.table.vocabulary_size - 1)}.` : ""}
        </p>
      ) : null}
      <ul class="plain">
        {found.data?.map((row) => (
          <li key={row.id}>
            <a href={address("tables", { ...rowParams(choice, row.id), find: text })}>{row.label ?? `row ${row.id}`}</a>{" "}
            <span class="faint">
              {row.label ? `row ${row.id}, ` : ""}by {row.by}
              {row.by.startsWith("unknown") ? ": lookups read this row for keys that are not in the vocabulary" : ""}
            </span>
          </li>
        ))}
      </ul>
      {found.data?.length === FOUND_ROWS ? <p class="faint">These are the first {FOUND_ROWS} rows; there may be more.</p> : null}
    </section>
  );
}

export function Tables({ overview, params }: { overview: Overview; params: Params }): JSX.Element {
  const { models, methods } = overview;
  const { choice, loaded } = useTables(models, params);
  const text = params["find"] ?? "";
  const path = choice.table && text ? tablePath(choice.model, choice.version, choice.table.name, `:find?${new URLSearchParams({ text, count: String(FOUND_ROWS) })}`) : "";
  const found = useLoad(path, async (signal) => (path ? (await get<{ rows: FoundRow[] }>(path, signal)).rows : undefined));
  const id = params["id"] ?? String(found.data?.[0]?.id ?? "");
  return (
    <>
      <h1 tabIndex={-1}>Tables</h1>
      <TableChoice models={models} choice={choice} loaded={loaded} />
      {choice.table ? (
        <>
          <Find key={`${choice.model} ${choice.table.name}`} text={text} />
          <div class="columns">
            <div class="beside">
              {text ? <Found choice={choice} text={text} found={found as Loaded<FoundRow[]>} /> : null}
              {id ? (
                <RowPanel choice={choice} id={id} methods={methods} comes={params["id"] !== undefined} />
              ) : (
                <p class="card faint">Choose a row to see its values, norm, provenance and nearest rows.</p>
              )}
              {methods.includes("hot") ? <HotRows choice={choice} id={id} /> : null}
            </div>
            <Rows choice={choice} params={params} />
          </div>
        </>
      ) : null}
    </>
  );
}
