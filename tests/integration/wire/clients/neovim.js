// Calls `infer` with the MessagePack-RPC transport of the neovim package: `node neovim.js SOCKET`.
'use strict';
const net = require('node:net');
const { Transport } = require('neovim/lib/utils/transport');

const socket = net.createConnection(process.argv[2]);
const transport = new Transport();
transport.attach(socket, socket, null);
const call = (method, body) => new Promise((resolve) => {
  transport.request(method, [body], (error, result) => resolve([error, result]));
});

const data = new Uint8Array(256);
const input = { name: 'x', datatype: 'FP32', shape: [1, 64], data };

(async () => {
  const [, answered] = await call('infer', { model_name: 'tiny', inputs: [input] });
  const [unknown] = await call('infer', { model_name: 'unknown', inputs: [input] });
  const [invalid] = await call('infer', { model_name: 'tiny', inputs: [input], mode: 1 });
  transport.notify('unheard_of', [1]);
  const pipelined = await Promise.all(
    Array.from({ length: 20 }, () => call('infer', { model_name: 'tiny', inputs: [input] })),
  );
  console.log(JSON.stringify({
    model_name: answered.model_name,
    output: answered.outputs[0].name,
    is_binary: answered.outputs[0].data instanceof Uint8Array,
    unknown,
    invalid,
    pipelined: pipelined.filter(([error]) => error === null).length,
  }));
  socket.end();
})();
