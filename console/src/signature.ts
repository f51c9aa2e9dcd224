// Reads a signature's metadata, and makes requests of what a person types.
import type { Row, Table } from "./api";

export interface TensorInfo {
  dtype: string;
  tensor_shape: { dim: { size: string }[]; unknown_rank: boolean };
}

export interface Signature {
  inputs: Record<string, TensorInfo>;
  outputs: Record<string, TensorInfo>;
  method_name: string;
}

export interface Metadata {
  model_spec: { version: string };
  metadata: { signature_def: { signature_def: Record<string, Signature> } };
}

/** One field of the form: an input of the signature, or a ragged feature that travels as several inputs. */
export interface Field {
  name: string;
  dtype: string;
  /** -1 for an unknown size. */
  shape: number[];
  isRagged: boolean;
}

const VALUES = "__values";

/** Returns the fields of a signature's form, ragged features under their own names. */
export function fieldsOf(signature: Signature): Field[] {
  const names = Object.keys(signature.inputs);
  const ragged = names
    .filter((name) => name.endsWith(VALUES) && names.includes(name.slice(0, -VALUES.length) + "__row_splits"))
    .map((name) => name.slice(0, -VALUES.length));
  const parts = new Set(ragged.flatMap((name) => [name + VALUES, `${name}__row_splits`, `${name}__weights`]));
  const dtypeOf = (name: string): string => signature.inputs[name]?.dtype ?? "";
  return [
    ...names
      .filter((name) => !parts.has(name))
      .map((name) => ({ name, dtype: dtypeOf(name), shape: (signature.inputs[name]?.tensor_shape.dim ?? []).map(({ size }) => Number(size)), isRagged: false })),
    ...ragged.map((name) => ({ name, dtype: dtypeOf(name + VALUES), shape: [-1, -1], isRagged: true })),
  ].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}

/** Says whether a field takes serialized tf.Examples, as the exporters of Estimators and of TFX name it. */
export function isExamples(field: Field): boolean {
  return field.dtype === "DT_STRING" && /^(inputs|.*examples?)$/.test(field.name);
}

// An example of more numbers would not be read.
const MAX_EXAMPLE = 16;

/** Returns a text for a field, of one row; "" if it would be long. key: of a row, for a field that takes keys. */
export function exampleOf(field: Field, key = "key"): string {
  if (isExamples(field)) return "";
  const isText = field.dtype === "DT_STRING";
  if (field.isRagged || field.shape.length <= 1) return isText ? key : "1";
  const sizes = field.shape.map((size) => Math.max(size, 1));
  if (sizes.reduce((all, size) => all * size) > MAX_EXAMPLE) return "";
  const value: unknown = isText ? key : field.dtype === "DT_BOOL" ? true : 1;
  return JSON.stringify(sizes.reduceRight((inner, size) => new Array(size).fill(inner), value));
}

/** Says in words what to type into a field. table: of the field's feature; row: one of its rows. */
export function hintOf(field: Field, table?: Table, row?: Row): string {
  const kind = field.dtype.replace("DT_", "").toLowerCase();
  if (isExamples(field)) return 'serialized tf.Examples: [{"b64": "…"}]';
  const key = row?.keys[field.name];
  const keys = key == null ? "" : `keys such as ${key}`;
  const ids = table && kind !== "string" ? `ids 0 to ${table.vocabulary_size - 1} of table ${table.name}` : "";
  const named = ids && !keys && row?.label ? `; ${row.id} is ${row.label}` : "";
  const what = [ids, keys].filter(Boolean).join(", or ") || (kind === "string" ? "texts" : "values");
  if (field.isRagged) return `${kind}; a line per row; in it ${what}, with commas${named}`;
  if (field.shape.length <= 1) return `${kind}; ${what}, one for each row, with commas${named}`;
  const shape = field.shape.map((size, at) => (size >= 0 ? size : at ? "any" : "rows")).join(", ");
  return `${kind}; ${what}, as JSON lists of shape [${shape}]${named}`;
}

/** Converts one word to JSON. Digits are kept as they are: JavaScript's numbers would change large ids. */
function word(text: string, dtype: string): string {
  const trimmed = text.trim();
  if (dtype === "DT_BOOL") return trimmed === "true" || trimmed === "1" ? "true" : "false";
  if (dtype !== "DT_STRING" && /^-?\d+$/.test(trimmed)) return trimmed.replace(/^(-?)0+(?=\d)/, "$1");
  if (/FLOAT|DOUBLE|HALF/.test(dtype) && trimmed !== "" && Number.isFinite(Number(trimmed))) return String(Number(trimmed));
  return JSON.stringify(trimmed);
}

/** Converts the text of a field to JSON; throws an Error that says what is wrong. */
export function jsonOf(field: Field, text: string): string {
  const trimmed = text.trim();
  if (trimmed.startsWith("[") || trimmed.startsWith("{")) {
    try {
      JSON.parse(trimmed);
    } catch (error) {
      throw new Error(`${field.name}: ${(error as Error).message}`);
    }
    return trimmed;
  }
  const words = (line: string): string[] => line.split(",").filter((one) => one.trim() !== "").map((one) => word(one, field.dtype));
  const lines = text.replace(/\n$/, "").split("\n");
  if (field.isRagged) return `[${lines.map((line) => `[${words(line).join(", ")}]`).join(", ")}]`;
  if (field.shape.length > 1) throw new Error(`${field.name}: expected JSON lists, such as [[1, 2]]`);
  const all = lines.flatMap(words);
  return field.shape.length === 0 && all.length === 1 ? (all[0] ?? "") : `[${all.join(", ")}]`;
}

export type Method = "lookup" | "predict";

/** Makes a request's body; fields without a text are left out. */
export function bodyOf(method: Method, name: string, fields: Field[], texts: Record<string, string>): string {
  const parts = fields
    .filter((field) => (texts[field.name] ?? "").trim() !== "")
    .map((field) => `    ${JSON.stringify(field.name)}: ${jsonOf(field, texts[field.name] ?? "")}`);
  const kind = method === "lookup" ? "features" : "inputs";
  return `{\n  "signature_name": ${JSON.stringify(name)},\n  "${kind}": {\n${parts.join(",\n")}\n  }\n}`;
}

/** Returns the request as programs in three languages. */
export function programs(request: {
  origin: string;
  path: string;
  model: string;
  version: string;
  method: Method;
  signature: string;
  body: string;
  needsToken: boolean;
}): { label: string; text: string }[] {
  const { origin, path, body, method, needsToken } = request;
  const url = origin + path;
  const quoted = body.replaceAll("'", `'\\''`);
  const header = needsToken ? ` \\\n  -H "Authorization: Bearer $TOKEN"` : "";
  const inner = JSON.stringify(JSON.parse(body)[method === "lookup" ? "features" : "inputs"])
    .replaceAll("true", "True")
    .replaceAll("false", "False");
  const token = needsToken ? `, token=os.environ["TOKEN"]` : "";
  const version = request.version ? `, version=${request.version}` : "";
  const authorization = needsToken ? ', Authorization: `Bearer ${token}`' : "";
  return [
    { label: "curl", text: `curl ${JSON.stringify(url)}${header} \\\n  -d '${quoted}'` },
    {
      label: "Python",
      text:
        `${needsToken ? "import os\n\n" : ""}from embedding_client import EmbeddingClient\n\n` +
        `with EmbeddingClient(${JSON.stringify(origin)}, model=${JSON.stringify(request.model)}${token}) as client:\n` +
        `    found = client.${method}(${inner}, signature=${JSON.stringify(request.signature)}${version})\n` +
        `    print(found.version, found)`,
    },
    {
      label: "TypeScript",
      text:
        `${needsToken ? "const token = process.env.TOKEN;\n" : ""}const response = await fetch(${JSON.stringify(url)}, {\n  method: "POST",\n` +
        `  headers: { "Content-Type": "application/json"${authorization} },\n` +
        `  body: JSON.stringify(${body.replaceAll("\n", "\n  ")}),\n});\n` +
        `if (!response.ok) throw new Error((await response.json()).error);\n` +
        `const { ${method === "lookup" ? "embeddings" : "outputs"} } = await response.json();`,
    },
  ];
}
