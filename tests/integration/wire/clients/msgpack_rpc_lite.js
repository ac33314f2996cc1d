// Calls `infer` with the msgpack-rpc-lite package: `node msgpack_rpc_lite.js SOCKET`.
'use strict';
const { Client } = require('msgpack-rpc-lite');

const client = new Client({ path: process.argv[2] });
const call = (method, body) => new Promise((resolve) => {
  client.request(method, body, (error, result) => resolve([error, result]));
});

const data = Buffer.alloc(256);
const input = { name: 'x', datatype: 'FP32', shape: [1, 64], data };

(async () => {
  const [, answered] = await call('infer', { model_name: 'tiny', inputs: [input] });
  const [unknown] = await call('infer', { model_name: 'unknown', inputs: [input] });
  const [invalid] = await call('infer', { model_name: 'tiny', inputs: [input], mode: 1 });
  await client.notify('unheard_of', 1);
  const pipelined = await Promise.all(
    Array.from({ length: 20 }, () => call('infer', { model_name: 'tiny', inputs: [input] })),
  );
  console.log(JSON.stringify({
    model_name: answered.model_name,
    output: answered.outputs[0].name,
    is_binary: Buffer.isBuffer(answered.outputs[0].data),
    unknown,
    invalid,
    pipelined: pipelined.filter(([error]) => error === null).length,
  }));
  client.close();
})();
