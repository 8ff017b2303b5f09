"""Language models behind the hub: any server that speaks OpenAI's HTTP interface, attached by URL or started here.

`requests` reads what routing needs of a request and leaves the rest as it came; `admission` lets requests in and puts
them in fair order, in tokens; `replica` is one server of a model: its load, its readiness, its circuit breaker;
`engine_process` starts a server; `relay` hands a request to one replica after another until one begins to answer;
`events` cuts a streamed answer into whole events; `service` puts these together for the web API. `echo` is a server for
tests that speaks, stalls and breaks. Batching and the KV cache are the engines' work.
"""
