// Calls one gRPC method for some seconds with @grpc/grpc-js and prints {"calls": n, "errors": n}.
// node grpc_js_client.js PORT BODY_FILE SECONDS CONNECTIONS STREAMS HAS_FIELDS
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const grpc = require('@grpc/grpc-js');

const [port, bodyFile, seconds, connections, streams, hasFields] = process.argv.slice(2);
const body = fs.readFileSync(bodyFile);
const end = Date.now() + 1000 * Number(seconds);
const asIs = (bytes) => bytes;
let calls = 0;
let errors = 0;

function metadata() {
  const fields = new grpc.Metadata();
  if (hasFields === 'true') {
    fields.set('authorization', 'Bearer 0123456789abcdef0123456789abcdef01234567');
    fields.set('x-request-id', crypto.randomUUID());
    fields.set('traceparent', `00-${crypto.randomBytes(16).toString('hex')}-${crypto.randomBytes(8).toString('hex')}-00`);
  }
  return fields;
}

function ask(client) {
  if (Date.now() >= end) return;
  const options = hasFields === 'true' ? { deadline: Date.now() + 5000 } : {};
  client.makeUnaryRequest('/tensorflow.serving.PredictionService/Predict', asIs, asIs, body, metadata(), options, (error) => {
    calls += 1;
    errors += error ? 1 : 0;
    ask(client);
  });
}

for (let i = 0; i < Number(connections); i += 1) {
  const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
    'grpc.max_receive_message_length': -1,
  });
  for (let j = 0; j < Number(streams); j += 1) ask(client);
}
process.on('exit', () => process.stdout.write(JSON.stringify({ calls, errors })));
