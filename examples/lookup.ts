// Requests embeddings from a running server over HTTP, with fetch alone: in Node 18 and later, Deno, Bun and browsers.
//
//   npx tsx examples/lookup.ts http://127.0.0.1:8501 movielens

type Id = number | string;

/** Ids by feature: one for each row, or a list of them for each row. Ids are numbers, or strings of a vocabulary. */
export interface Lookup {
  features: Record<string, Id[] | Id[][]>;
  weights?: Record<string, number[][]>;
}

/** An error answer of the server; docs/errors.md lists the codes. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    readonly code: string | null,
    message: string,
    /** The models that you may see, if yours is unknown. */
    readonly models: string[] = [],
  ) {
    super(`${status} ${code}: ${message} ${models.join(", ")}`);
  }
}

/** Posts a lookup; returns the embeddings by feature, one for each row. */
export async function ask(server: string, model: string, lookup: Lookup): Promise<Record<string, number[][]>> {
  const path = `${server}/v1/models/${encodeURIComponent(model)}:lookup`;
  const response = await fetch(path, { method: "POST", body: JSON.stringify(lookup) });
  const answer = await response.json();
  if (!response.ok) {
    throw new ServerError(response.status, response.headers.get("X-Error-Code"), answer.error, answer.models);
  }
  return answer.embeddings;
}

declare const process: { argv: string[]; exitCode?: number };

async function main([server = "http://127.0.0.1:8501", model = "movielens"]: string[]): Promise<void> {
  const found = await ask(server, model, { features: { user_id: [1, 2], genres: [["Comedy", "Drama"], []] } });
  console.log(`${found.user_id.length} users of ${found.user_id[0].length} numbers, genres ${found.genres[1]}`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(String(error));
  process.exitCode = 1;
});
