// A form on the admin listener that changes or erases rows of a table.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Model, Table, post, tablePath } from "../api";
import { Confirmed, Select, TableChoice, useTables } from "../parts";
import type { Params } from "../hooks";

/** The answer to an upsert. */
interface Receipt {
  version: number;
  table: string;
  sequence: number;
  rows: number;
  is_visible: boolean;
}

interface Body {
  ids?: number[];
  keys?: (string | number)[];
  feature?: string;
  rows: number[][];
  force?: boolean;
}

const MAX_NAMED = 5;

function lines(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

/** Reads the rows' names: ids separated by commas, spaces or lines; one key a line. Throws an Error with a text. */
function namesOf(by: string, text: string): (string | number)[] {
  const names = by === "id" ? text.split(/[\s,]+/).filter(Boolean) : lines(text);
  if (!names.length) throw new Error(by === "id" ? "Enter at least one row id." : "Enter at least one key.");
  if (by !== "id") return names;
  return names.map((name) => {
    if (!/^\d+$/.test(name)) throw new Error(`“${name}” is no row id.`);
    return Number(name);
  });
}

/** Reads a line of numbers for each row; throws an Error with a text. */
function valuesOf(text: string, count: number, dim: number): number[][] {
  const found = lines(text).map((line) => line.replace(/^\[|\]$/g, "").split(/[\s,]+/).filter(Boolean).map(Number));
  if (found.length !== count) throw new Error(`Enter ${count} ${count === 1 ? "line" : "lines"} of values, one for each row.`);
  for (const [at, row] of found.entries()) {
    if (row.length !== dim) throw new Error(`Line ${at + 1} has ${row.length} numbers, a row of this table has ${dim}.`);
    if (!row.every(Number.isFinite)) throw new Error(`Line ${at + 1} has something that is no number.`);
  }
  return found;
}

function bodyOf(by: string, names: (string | number)[], rows: number[][], isForced: boolean): Body {
  const named = by === "id" ? { ids: names as number[] } : { keys: names, feature: by.slice(4) };
  return { ...named, rows, ...(isForced ? { force: true } : {}) };
}

/** Returns a body, or the text of what is wrong with the fields. */
function tried(make: () => Body): { body?: Body; fault: string } {
  try {
    return { body: make(), fault: "" };
  } catch (error) {
    return { fault: (error as Error).message };
  }
}

export function RowsForm(props: {
  models: Model[];
  params: Params;
  isDisabled: boolean;
  act: (work: () => Promise<string>) => Promise<void>;
}): JSX.Element {
  const { models, isDisabled } = props;
  const { choice, loaded } = useTables(models, props.params);
  const [by, setBy] = useState("id");
  const [names, setNames] = useState("");
  const [values, setValues] = useState("");
  const [isForced, setForced] = useState(false);
  const table: Table | undefined = choice.table;
  const features = table?.features ?? [];
  const chosenBy = by === "id" || features.includes(by.slice(4)) ? by : "id";
  const latest = models.find((one) => one.name === choice.model)?.versions.find((one) => one.state === "AVAILABLE")?.version;
  // The request names the version of the question, because another version may become the latest meanwhile.
  const version = choice.version || String(latest ?? "");
  const dim = table?.embedding_dim ?? 0;
  const changed = tried(() => {
    const read = namesOf(chosenBy, names);
    return bodyOf(chosenBy, read, valuesOf(values, read.length, dim), isForced);
  });
  const erased = tried(() => {
    const read = namesOf(chosenBy, names);
    return bodyOf(chosenBy, read, read.map(() => new Array<number>(dim).fill(0)), isForced);
  });
  const told = (body: Body | undefined): string => {
    const all = body?.ids ?? body?.keys ?? [];
    const more = all.length > MAX_NAMED ? ` and ${all.length - MAX_NAMED} more` : "";
    const what = body?.keys ? "of the keys " : "";
    return `${all.length} ${all.length === 1 ? "row" : "rows"} (${what}${all.slice(0, MAX_NAMED).join(", ")}${more}) of table ${table?.name} of ${choice.model}, version ${version}`;
  };
  const send = (body: Body | undefined, verb: string): Promise<void> =>
    props.act(async () => {
      const receipt = await post<Receipt>(tablePath(choice.model, version, table?.name ?? "", ":upsert"), body);
      const seen = receipt.is_visible ? "Lookups use them." : "Lookups do not use them yet; look at the page Deltas.";
      return `Delta ${receipt.sequence} ${verb} ${receipt.rows} ${receipt.rows === 1 ? "row" : "rows"} of table ${receipt.table}, version ${receipt.version}. ${seen}`;
    });
  return (
    <section class="card" aria-label="Rows">
      <h2>Rows of a table</h2>
      <TableChoice models={models} choice={choice} loaded={loaded} />
      {table ? (
        <>
          <div class="fields">
            <Select
              label="Rows by"
              value={chosenBy}
              options={[["id", "row id"], ...features.map((one): [string, string] => [`key:${one}`, `key of ${one}`])]}
              onChange={setBy}
            />
          </div>
          <label class="field">
            <span>{chosenBy === "id" ? "Row ids, separated by commas" : "Keys, one a line"}</span>
            <textarea rows={2} spellcheck={false} value={names} onInput={(event) => setNames(event.currentTarget.value)} />
          </label>
          <label class="field">
            <span>New values: {dim} numbers a line, one line for each row; not needed to erase</span>
            <textarea rows={2} spellcheck={false} value={values} onInput={(event) => setValues(event.currentTarget.value)} />
          </label>
          <label class="check">
            <input type="checkbox" checked={isForced} onChange={(event) => setForced(event.currentTarget.checked)} /> Change the rows even if a
            prediction graph keeps a copy of the table: lookups then use the new rows, and that prediction the old ones
          </label>
          {names && (values ? changed.fault : erased.fault) ? <p class="problem">{values ? changed.fault : erased.fault}</p> : null}
          <div class="fields">
            <Confirmed
              label="Change rows"
              isDisabled={isDisabled || !changed.body}
              question={`Change ${told(changed.body)}? Lookups use the new values at once.`}
              act={() => send(changed.body, "changed")}
            />
            <Confirmed
              label="Erase rows"
              isDisabled={isDisabled || !erased.body}
              question={`Erase ${told(erased.body)}? Lookups find zeros at once. The old values stay in the files of the version.`}
              act={() => send(erased.body, "erased")}
            />
          </div>
        </>
      ) : null}
    </section>
  );
}
