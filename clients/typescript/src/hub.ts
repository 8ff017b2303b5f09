// Generated from the hub's /openapi.json by `npm run generate`; not to be edited.
export interface paths {
    "/v2/models/stats": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * How often and how long it was asked, waited for and computed
         * @description Scope: read. Callers: this machine, or a key of the whole hub.
         */
        get: operations["get_v2_models_stats"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/stats": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * How often and how long it was asked, waited for and computed
         * @description Scope: read. Callers: this machine, or a key of the whole hub.
         */
        get: operations["get_v2_models_model_stats"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/versions/{version}/stats": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * How often and how long it was asked, waited for and computed
         * @description Scope: read. Callers: this machine, or a key of the whole hub.
         */
        get: operations["get_v2_models_model_versions_version_stats"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/repository/index": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Every version of every model, loaded or not
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v2_repository_index"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/repository/models/{model}/load": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Load
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v2_repository_models_model_load"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/repository/models/{model}/unload": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Unload
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v2_repository_models_model_unload"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The server and its extensions
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/health/live": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether the server lives
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_health_live"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/health/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether models are loaded
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_health_ready"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What a model takes and gives
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_models_model"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether a model is ready
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_models_model_ready"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/infer": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Infer
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v2_models_model_infer"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/versions/{version}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What a model takes and gives
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_models_model_versions_version"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/versions/{version}/ready": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether a model is ready
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v2_models_model_versions_version_ready"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v2/models/{model}/versions/{version}/infer": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Infer
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v2_models_model_versions_version_infer"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/jobs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Jobs, the oldest first
         * @description Scope: infer. Callers: a key.
         */
        get: operations["get_v1_jobs"];
        put?: never;
        /**
         * Hand over a job: answered 202 once it is stored
         * @description Scope: infer. Callers: a key.
         */
        post: operations["post_v1_jobs"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/jobs/{job}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What became of a job, and its answer
         * @description Scope: infer. Callers: a key.
         */
        get: operations["get_v1_jobs_job"];
        put?: never;
        post?: never;
        /**
         * Cancel a job that has not ended
         * @description Scope: infer. Callers: a key.
         */
        delete: operations["delete_v1_jobs_job"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/jobs/{job}/requeue": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Queue a dead job again
         * @description Scope: infer. Callers: a key.
         */
        post: operations["post_v1_jobs_job_requeue"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Hand over a file of jobs, a line each
         * @description Scope: infer. Callers: a key.
         */
        post: operations["post_v1_batches"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches/{batch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Progress of a batch
         * @description Scope: infer. Callers: a key.
         */
        get: operations["get_v1_batches_batch"];
        put?: never;
        post?: never;
        /**
         * Cancel what has not ended of a batch
         * @description Scope: infer. Callers: a key.
         */
        delete: operations["delete_v1_batches_batch"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/batches/{batch}/answers": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Answers of a batch as JSON lines, after a line
         * @description Scope: infer. Callers: a key.
         */
        get: operations["get_v1_batches_batch_answers"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The language models that this caller may use
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v1_models"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/models/{model}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * One language model
         * @description Scope: infer. Callers: this machine, or a key.
         */
        get: operations["get_v1_models_model"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/responses": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Answer by OpenAI's Responses interface, as a stream of events if `stream` is set
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v1_responses"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/chat/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Answer a chat, as a stream of events if `stream` is set
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v1_chat_completions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/completions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Continue a text, as a stream of events if `stream` is set
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v1_completions"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/embeddings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Embed texts
         * @description Scope: infer. Callers: this machine, or a key.
         */
        post: operations["post_v1_embeddings"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/healthz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether this process lives
         * @description Scope: read. Callers: everybody.
         */
        get: operations["get_healthz"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/readyz": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Whether its models answer right now; 503 with the reason if not
         * @description Scope: read. Callers: everybody; this machine and keys see more.
         */
        get: operations["get_readyz"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/metrics": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Metrics for Prometheus
         * @description Scope: read. Callers: this machine, or a key of the whole hub.
         */
        get: operations["get_metrics"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/enrol": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Enrol a device: an invite and proof of its keys for a certificate
         * @description Scope: operate. Callers: everybody.
         */
        post: operations["post_v1_enrol"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/renew": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Renew a device's certificate
         * @description Scope: operate. Callers: everybody.
         */
        post: operations["post_v1_renew"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/retire": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retire a device
         * @description Scope: operate. Callers: everybody.
         */
        post: operations["post_v1_retire"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/status": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Status of the hub
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_status"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/invites": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * A one-time invite for a device
         * @description Scope: operate. Callers: a key.
         */
        post: operations["post_v1_admin_invites"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/devices": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The devices
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_devices"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/devices/{device}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * One device
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_devices_device"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/devices/{device}/questions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What became of a device's questions
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_devices_device_questions"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/devices/{device}/state": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Suspend, revoke, retire a device, or let it in again
         * @description Scope: operate. Callers: a key.
         */
        post: operations["post_v1_admin_devices_device_state"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/ca": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The hub's CA
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_ca"];
        put?: never;
        /**
         * Replace the CA, or finish replacing it
         * @description Scope: admin. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_ca"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Every key, without its token
         * @description Scope: admin. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_keys"];
        put?: never;
        /**
         * Create a key; only this answer shows its token
         * @description Scope: admin. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_keys"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/keys/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /**
         * Revoke a key
         * @description Scope: admin. Callers: a key of the whole hub.
         */
        delete: operations["delete_v1_admin_keys_key"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/audit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The last changes and refusals
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_audit"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/deny-all": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The notices that deny all
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_deny_all"];
        put?: never;
        /**
         * From now on nothing leaves the devices of this scope
         * @description Scope: operate. Callers: a key.
         */
        post: operations["post_v1_admin_deny_all"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/erase": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Erase a subject's data for a device
         * @description Scope: operate. Callers: everybody.
         */
        post: operations["post_v1_erase"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/aggregates": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Verdict counts by label, model and past day
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_aggregates"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/ledger/checkpoint": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The log's size and root, signed (C2SP)
         * @description Scope: admin. Callers: everybody.
         */
        get: operations["get_v1_ledger_checkpoint"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/ledger/consistency": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Proof that the log only grew from `first` to `second` heads (RFC 9162, 2.1.4)
         * @description Scope: admin. Callers: everybody.
         */
        get: operations["get_v1_ledger_consistency"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/ledger/inclusion": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Proof that a leaf is in the log when it had `size` heads (RFC 9162, 2.1.3)
         * @description Scope: admin. Callers: everybody.
         */
        get: operations["get_v1_ledger_inclusion"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/ledger/{device}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The heads that a device has signed, as they stand in the log
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_ledger_device"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/ledger/{device}/state": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * A device's newest heads with whether each is proven, and what it spent
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_admin_ledger_device_state"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Every version, its state, how many devices use it
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_models"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/models/{model}/retire": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Retire a version: refused while devices use it, unless forced
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_models_model_retire"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/costs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What was used and what it costs, by day, tenant, model and region; `days`: today and those before it
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_costs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/hubs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The hubs of the region, with the shards and tasks of each
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_hubs"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/alarms": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Everything that a person has to look at now
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_alarms"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/policies": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The policies that this hub serves, in words
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_policies"];
        put?: never;
        /**
         * Publish a policy document to the devices
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_policies"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/policies/diff": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * What a policy document would change
         * @description Scope: read. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_policies_diff"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/language-models": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Every language model, its queue, and the state of each of its replicas
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_language_models"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * The rollouts, newest first
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_rollouts"];
        put?: never;
        /**
         * Roll a version out to devices, in waves
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Progress of a rollout, and the result of its gate
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_rollouts_rollout"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/devices": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Every device of a rollout
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_rollouts_rollout_devices"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/history": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Who did what in a rollout, and when
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_rollouts_rollout_history"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/looks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * What each look of a rollout's gate saw
         * @description Scope: read. Callers: a key of the whole hub.
         */
        get: operations["get_v1_admin_rollouts_rollout_looks"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Pause: no further device is assigned anything
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts_rollout_pause"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/resume": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Resume a paused rollout
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts_rollout_resume"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/abort": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Abort: what is not committed is withdrawn
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts_rollout_abort"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/approve": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Approve the plan as one more person
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts_rollout_approve"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/admin/rollouts/{rollout}/undo": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Revert /v1/admin/rollouts/{rollout} to the version before
         * @description Scope: operate. Callers: a key of the whole hub.
         */
        post: operations["post_v1_admin_rollouts_rollout_undo"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/session": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Who this caller is, and what it may do
         * @description Scope: read. Callers: a key.
         */
        get: operations["get_v1_session"];
        put?: never;
        post?: never;
        /**
         * End this browser's session
         * @description Scope: read. Callers: a key.
         */
        delete: operations["delete_v1_session"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/session/code": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * A one-time code that signs a browser in as this caller, for a minute
         * @description Scope: read. Callers: a key.
         */
        post: operations["post_v1_session_code"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/openapi.json": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * This description
         * @description Scope: read. Callers: this machine, or a key.
         */
        get: operations["get_openapi_json"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        Refusal: {
            error: string;
        };
        /**
         * ApproveRequest
         * @description Body of an approval. `plan`: the digest of what the person looked at; other content is not approved by it.
         */
        ApproveRequest: {
            plan: string;
        };
        /**
         * CaRequest
         * @description Body of `POST /v1/admin/ca`. `force`: finish even though devices will be cut off.
         */
        CaRequest: {
            step: components["schemas"]["CaStep"];
            /** @default false */
            force: boolean;
        };
        /**
         * CaStep
         * @description Step of a CA rotation.
         * @enum {unknown}
         */
        CaStep: "finish" | "rotate";
        /**
         * CodeRequest
         * @description Body of `POST /v1/session/code`. `next`: the page that the browser is sent to, a path of this hub.
         */
        CodeRequest: {
            /** @default / */
            next: string;
        };
        /**
         * DenyRequest
         * @description Body of `POST /v1/admin/deny-all`.
         *
         *     `scope`: a device's id, a tenant, or "" for everybody. `why`: one line, shown on the devices.
         */
        DenyRequest: {
            why: string;
            /** @default  */
            scope: string;
        };
        /**
         * DeviceRetireRequest
         * @description Body of a retirement request.
         *
         *     `ledger`: SHA-256 of the file that the device exported, hex. `proof` base64 Ed25519 over `build_retire_text`.
         */
        DeviceRetireRequest: {
            device: string;
            ledger: string;
            proof: string;
        };
        /**
         * EnrolRequest
         * @description Body of an enrolment request.
         *
         *     `csr` is PEM; keys and proof are base64 of 32, 32 and 64 raw bytes. `hardware`: the machine's serial number, or "".
         */
        EnrolRequest: {
            token: string;
            csr: string;
            signing_key: string;
            hpke_key: string;
            proof: string;
            /** @default  */
            hardware: string;
        };
        /**
         * EraseRequest
         * @description Body of an erasure request.
         *
         *     `subject`: its keyed hash, hex; data kept until `before_ms` (hub time) is erased. `questions`: names (`EPOCH-SEQ`)
         *     of questions that the device asked about it, erased whether or not they came with the hash. `proof`: over
         *     `build_erase_text`.
         */
        EraseRequest: {
            device: string;
            subject: string;
            before_ms: number;
            proof: string;
            /** @default [] */
            questions: string[];
        };
        /**
         * IndexRequest
         * @description Body of the index request. `ready`: only loaded models.
         */
        IndexRequest: {
            /** @default false */
            ready: boolean;
        };
        /**
         * InviteRequest
         * @description Body of `POST /v1/admin/invites`.
         *
         *     `device` is a whole id, `tenant--name`; `expires_s`: seconds for which the invite may be used, one second to 30
         *     days. `hardware`, `replace`: see `registry.DeviceInvitation`.
         */
        InviteRequest: {
            device: string;
            /** @default 3600 */
            expires_s: number;
            /** @default [] */
            hardware: string[];
            /** @default false */
            replace: boolean;
            /** @default  */
            device_class: string;
            /** @default  */
            region: string;
        };
        /**
         * JobRequest
         * @description Body of a job.
         *
         *     `model`: `NAME` or `NAME@VERSION`; `request`: an inference request of the Open Inference Protocol in JSON, or of a
         *     language model the body of a chat, a completion or an embedding; `custom_id`: the caller's own name of the job;
         *     `timeout_s`: its own time, 0 = the hub's default; `webhook`: URL that is told of its end, "" = none. `device`,
         *     `subject`: the device and the keyed hash (hex) of the person that it is about, so that an erasure finds it.
         */
        JobRequest: {
            model: string;
            request: unknown;
            /** @default 0 */
            timeout_s: number;
            /** @default  */
            webhook: string;
            /** @default  */
            device: string;
            /** @default  */
            subject: string;
            /** @default  */
            custom_id: string;
        };
        /**
         * KeyRequest
         * @description Request to create a key. `tenant` "" = for the whole hub; `expires_s` 0 = until it is revoked.
         */
        KeyRequest: {
            name: string;
            scopes: components["schemas"]["Scope"][];
            /** @default  */
            tenant: string;
            /** @default 0 */
            expires_s: number;
        };
        /**
         * Scope
         * @description Permissions of a caller. `admin` belongs to the admin token alone.
         * @enum {unknown}
         */
        Scope: "admin" | "infer" | "operate" | "read";
        /**
         * LoadRequest
         * @description Body of a load or unload request.
         *
         *     `parameters`: `version`, the newest one without it; `unload_dependents`, true or false: no model here has any.
         */
        LoadRequest: {
            /** @default {} */
            parameters: {
                version?: string | number;
                unload_dependents?: boolean;
            } & {
                [key: string]: boolean | number | string;
            };
        };
        /**
         * ModelRetireRequest
         * @description Body of `POST /v1/admin/models/{model}/retire`. `force`: although devices still use it; they get `model_gone`.
         */
        ModelRetireRequest: {
            /** @default false */
            force: boolean;
        };
        /**
         * PolicyRequest
         * @description Body of a comparison and of a publication. `document`: a policy document (TOML).
         */
        PolicyRequest: {
            document: string;
        };
        /**
         * ReasonRequest
         * @description Body of pause and abort. `why`: one line, for the history.
         */
        ReasonRequest: {
            /** @default  */
            why: string;
        };
        /**
         * RenewRequest
         * @description Body of a renewal request.
         *
         *     `csr` is PEM, of a new key; `proof` base64 Ed25519 of the device's signing key over `build_renew_text`.
         */
        RenewRequest: {
            device: string;
            csr: string;
            proof: string;
        };
        /**
         * ResumeRequest
         * @description Body of a resume. `accept`: the wave passes although the evidence does not decide; harm still stops it.
         */
        ResumeRequest: {
            /** @default  */
            why: string;
            /** @default false */
            accept: boolean;
        };
        /**
         * StartRequest
         * @description Body of `POST /v1/admin/rollouts`.
         *
         *     `model`: digits@8, published. `to`: class=camera,region=eu|us or all. `back`: "" = what most devices run now.
         *     `rules`: parameters over their defaults; `id`: "" = made from family, version and time.
         */
        StartRequest: {
            model: string;
            /** @default all */
            to: string;
            /** @default  */
            back: string;
            /** @default {} */
            rules: Record<string, never>;
            /** @default  */
            id: string;
        };
        /**
         * StateRequest
         * @description Body of `POST /v1/admin/devices/{device}/state`.
         *
         *     `drain_s`: for how many seconds a retiring device still gets the verdicts it is owed.
         */
        StateRequest: {
            state: components["schemas"]["DeviceState"];
            /** @default 86400 */
            drain_s: number;
        };
        /**
         * DeviceState
         * @description Life-cycle state of an enrolled device.
         * @enum {unknown}
         */
        DeviceState: "active" | "retired" | "retiring" | "revoked" | "suspended";
        /**
         * UndoRequest
         * @description Body of an undo. `to_version`: 0 = the one before. Takes a permit in the update repository.
         */
        UndoRequest: {
            /** @default  */
            why: string;
            /** @default 0 */
            to_version: number;
        };
        LlmError: {
            error: {
                message: string;
                type: string;
            };
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    get_v2_models_stats: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description How often and how long it was asked, waited for and computed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model_stats: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description How often and how long it was asked, waited for and computed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model_versions_version_stats: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
                version: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description How often and how long it was asked, waited for and computed */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v2_repository_index: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["IndexRequest"];
            };
        };
        responses: {
            /** @description Every version of every model, loaded or not */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>[];
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v2_repository_models_model_load: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["LoadRequest"];
            };
        };
        responses: {
            /** @description Load */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v2_repository_models_model_unload: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["LoadRequest"];
            };
        };
        responses: {
            /** @description Unload */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The server and its extensions */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        name: string;
                        version: string;
                        extensions: string[];
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_health_live: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether the server lives */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_health_ready: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether models are loaded */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What a model takes and gives */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        name: string;
                        versions: string[];
                        platform: string;
                        inputs: Record<string, never>[];
                        outputs: Record<string, never>[];
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model_ready: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether a model is ready */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v2_models_model_infer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        /** @description Inputs by name, as the model's metadata lists them; a model of texts takes `text_input` (BYTES, one text a row) and gives `text_output` beside its classifier's outputs. With `Inference-Header-Content-Length` the body is that much JSON, then the tensors' bytes in their order. */
        requestBody: {
            content: {
                "application/json": {
                    id?: string;
                    /** @description priority (1 = highest, 0 = default), timeout (microseconds), binary_data_output */
                    parameters?: {
                        [key: string]: string | number | boolean;
                    };
                    inputs: {
                        name: string;
                        /** @enum {string} */
                        datatype: "BOOL" | "BYTES" | "FP16" | "FP32" | "FP64" | "INT16" | "INT32" | "INT64" | "INT8" | "UINT16" | "UINT32" | "UINT64" | "UINT8";
                        shape: number[];
                        parameters?: Record<string, never>;
                        /** @description Row-major, flat or nested as the shape says */
                        data?: unknown[];
                    }[];
                    outputs?: {
                        name: string;
                        parameters?: Record<string, never>;
                    }[];
                };
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Infer */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        model_name: string;
                        model_version: string;
                        id?: string;
                        parameters?: {
                            [key: string]: string | number | boolean;
                        };
                        outputs: {
                            name: string;
                            /** @enum {string} */
                            datatype: "BOOL" | "BYTES" | "FP16" | "FP32" | "FP64" | "INT16" | "INT32" | "INT64" | "INT8" | "UINT16" | "UINT32" | "UINT64" | "UINT8";
                            shape: number[];
                            parameters?: Record<string, never>;
                            /** @description Row-major, flat or nested as the shape says */
                            data?: unknown[];
                        }[];
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model_versions_version: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
                version: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What a model takes and gives */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        name: string;
                        versions: string[];
                        platform: string;
                        inputs: Record<string, never>[];
                        outputs: Record<string, never>[];
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v2_models_model_versions_version_ready: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
                version: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether a model is ready */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v2_models_model_versions_version_infer: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
                version: string;
            };
            cookie?: never;
        };
        /** @description Inputs by name, as the model's metadata lists them; a model of texts takes `text_input` (BYTES, one text a row) and gives `text_output` beside its classifier's outputs. With `Inference-Header-Content-Length` the body is that much JSON, then the tensors' bytes in their order. */
        requestBody: {
            content: {
                "application/json": {
                    id?: string;
                    /** @description priority (1 = highest, 0 = default), timeout (microseconds), binary_data_output */
                    parameters?: {
                        [key: string]: string | number | boolean;
                    };
                    inputs: {
                        name: string;
                        /** @enum {string} */
                        datatype: "BOOL" | "BYTES" | "FP16" | "FP32" | "FP64" | "INT16" | "INT32" | "INT64" | "INT8" | "UINT16" | "UINT32" | "UINT64" | "UINT8";
                        shape: number[];
                        parameters?: Record<string, never>;
                        /** @description Row-major, flat or nested as the shape says */
                        data?: unknown[];
                    }[];
                    outputs?: {
                        name: string;
                        parameters?: Record<string, never>;
                    }[];
                };
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Infer */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        model_name: string;
                        model_version: string;
                        id?: string;
                        parameters?: {
                            [key: string]: string | number | boolean;
                        };
                        outputs: {
                            name: string;
                            /** @enum {string} */
                            datatype: "BOOL" | "BYTES" | "FP16" | "FP32" | "FP64" | "INT16" | "INT32" | "INT64" | "INT8" | "UINT16" | "UINT32" | "UINT64" | "UINT8";
                            shape: number[];
                            parameters?: Record<string, never>;
                            /** @description Row-major, flat or nested as the shape says */
                            data?: unknown[];
                        }[];
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_jobs: {
        parameters: {
            query: {
                state: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                after: string;
                limit?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Jobs, the oldest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        jobs?: {
                            id?: string;
                            /** @enum {string} */
                            state?: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                            why?: string;
                            answer?: Record<string, never>;
                        }[];
                        next?: string;
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_jobs: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["JobRequest"];
            };
        };
        responses: {
            /** @description Hand over a job: answered 202 once it is stored */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                        why?: string;
                        answer?: Record<string, never>;
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_jobs_job: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                job: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What became of a job, and its answer */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                        why?: string;
                        answer?: Record<string, never>;
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    delete_v1_jobs_job: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                job: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Cancel a job that has not ended */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                        why?: string;
                        answer?: Record<string, never>;
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_jobs_job_requeue: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                job: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Queue a dead job again */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "accepted" | "queued" | "running" | "answered" | "failed" | "cancelled" | "expired" | "dead";
                        why?: string;
                        answer?: Record<string, never>;
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_batches: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/x-ndjson": string;
            };
        };
        responses: {
            /** @description Hand over a file of jobs, a line each */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "receiving" | "running" | "ended";
                        lines?: number;
                        ended?: number;
                        jobs?: {
                            [key: string]: number;
                        };
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_batches_batch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Progress of a batch */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "receiving" | "running" | "ended";
                        lines?: number;
                        ended?: number;
                        jobs?: {
                            [key: string]: number;
                        };
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    delete_v1_batches_batch: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                batch: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Cancel what has not ended of a batch */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": {
                        id?: string;
                        /** @enum {string} */
                        state?: "receiving" | "running" | "ended";
                        lines?: number;
                        ended?: number;
                        jobs?: {
                            [key: string]: number;
                        };
                    };
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_batches_batch_answers: {
        parameters: {
            query?: {
                after?: number;
            };
            header?: never;
            path: {
                batch: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Answers of a batch as JSON lines, after a line */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/x-ndjson": string;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_models: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The language models that this caller may use */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    get_v1_models_model: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description One language model */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    post_v1_responses: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    model: string;
                    input: string | ({
                        /** @constant */
                        type?: "message";
                        /** @enum {unknown} */
                        role: "user" | "assistant" | "system" | "developer";
                        content: string | ({
                            /** @enum {unknown} */
                            type: "input_text" | "output_text";
                            text: string;
                        } | {
                            /** @constant */
                            type: "input_image";
                            image_url: string;
                            detail?: string | null;
                        })[];
                    } | {
                        /** @constant */
                        type: "function_call";
                        call_id: string;
                        name: string;
                        arguments?: string;
                    } | {
                        /** @constant */
                        type: "function_call_output";
                        call_id: string;
                        output: string | ({
                            /** @enum {unknown} */
                            type: "input_text" | "output_text";
                            text: string;
                        } | {
                            /** @constant */
                            type: "input_image";
                            image_url: string;
                            detail?: string | null;
                        })[];
                    })[];
                    instructions?: string | null;
                    max_output_tokens?: number | null;
                    stream?: boolean | null;
                    tools?: {
                        /** @constant */
                        type: "function";
                        name: string;
                    }[] | null;
                };
            };
        };
        responses: {
            /** @description Answer by OpenAI's Responses interface, as a stream of events if `stream` is set */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    post_v1_chat_completions: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    model: string;
                    messages: Record<string, never>[];
                    max_completion_tokens?: number | null;
                    stream?: boolean | null;
                    max_tokens?: number | null;
                    n?: number | null;
                };
            };
        };
        responses: {
            /** @description Answer a chat, as a stream of events if `stream` is set */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    post_v1_completions: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    model: string;
                    prompt: string | number[] | string[] | number[][];
                    best_of?: number | null;
                    stream?: boolean | null;
                    max_tokens?: number | null;
                    n?: number | null;
                };
            };
        };
        responses: {
            /** @description Continue a text, as a stream of events if `stream` is set */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    post_v1_embeddings: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": {
                    model: string;
                    input: string | number[] | string[] | number[][];
                };
            };
        };
        responses: {
            /** @description Embed texts */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LlmError"];
                };
            };
        };
    };
    get_healthz: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether this process lives */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_readyz: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Whether its models answer right now; 503 with the reason if not */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_metrics: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Metrics for Prometheus */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_enrol: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EnrolRequest"];
            };
        };
        responses: {
            /** @description Enrol a device: an invite and proof of its keys for a certificate */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_renew: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RenewRequest"];
            };
        };
        responses: {
            /** @description Renew a device's certificate */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_retire: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DeviceRetireRequest"];
            };
        };
        responses: {
            /** @description Retire a device */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_status: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Status of the hub */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_invites: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["InviteRequest"];
            };
        };
        responses: {
            /** @description A one-time invite for a device */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_devices: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The devices */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_devices_device: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description One device */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_devices_device_questions: {
        parameters: {
            query?: {
                hours?: number;
            };
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What became of a device's questions */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_devices_device_state: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StateRequest"];
            };
        };
        responses: {
            /** @description Suspend, revoke, retire a device, or let it in again */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_ca: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The hub's CA */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_ca: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CaRequest"];
            };
        };
        responses: {
            /** @description Replace the CA, or finish replacing it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Every key, without its token */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_keys: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["KeyRequest"];
            };
        };
        responses: {
            /** @description Create a key; only this answer shows its token */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    delete_v1_admin_keys_key: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                key: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Revoke a key */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_audit: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The last changes and refusals */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_deny_all: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The notices that deny all */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_deny_all: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["DenyRequest"];
            };
        };
        responses: {
            /** @description From now on nothing leaves the devices of this scope */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_erase: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["EraseRequest"];
            };
        };
        responses: {
            /** @description Erase a subject's data for a device */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_aggregates: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Verdict counts by label, model and past day */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_ledger_checkpoint: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The log's size and root, signed (C2SP) */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "text/plain": string;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_ledger_consistency: {
        parameters: {
            query: {
                first: number;
                second: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Proof that the log only grew from `first` to `second` heads (RFC 9162, 2.1.4) */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_ledger_inclusion: {
        parameters: {
            query: {
                index: number;
                size: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Proof that a leaf is in the log when it had `size` heads (RFC 9162, 2.1.3) */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_ledger_device: {
        parameters: {
            query?: {
                after?: number;
            };
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The heads that a device has signed, as they stand in the log */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_ledger_device_state: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                device: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description A device's newest heads with whether each is proven, and what it spent */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_models: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Every version, its state, how many devices use it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_models_model_retire: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                model: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ModelRetireRequest"];
            };
        };
        responses: {
            /** @description Retire a version: refused while devices use it, unless forced */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_costs: {
        parameters: {
            query?: {
                days?: number;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What was used and what it costs, by day, tenant, model and region; `days`: today and those before it */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_hubs: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The hubs of the region, with the shards and tasks of each */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_alarms: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Everything that a person has to look at now */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_policies: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The policies that this hub serves, in words */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_policies: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PolicyRequest"];
            };
        };
        responses: {
            /** @description Publish a policy document to the devices */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_policies_diff: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PolicyRequest"];
            };
        };
        responses: {
            /** @description What a policy document would change */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_language_models: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Every language model, its queue, and the state of each of its replicas */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_rollouts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description The rollouts, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["StartRequest"];
            };
        };
        responses: {
            /** @description Roll a version out to devices, in waves */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_rollouts_rollout: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Progress of a rollout, and the result of its gate */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_rollouts_rollout_devices: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Every device of a rollout */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_rollouts_rollout_history: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Who did what in a rollout, and when */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_admin_rollouts_rollout_looks: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description What each look of a rollout's gate saw */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts_rollout_pause: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ReasonRequest"];
            };
        };
        responses: {
            /** @description Pause: no further device is assigned anything */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts_rollout_resume: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ResumeRequest"];
            };
        };
        responses: {
            /** @description Resume a paused rollout */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts_rollout_abort: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ReasonRequest"];
            };
        };
        responses: {
            /** @description Abort: what is not committed is withdrawn */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts_rollout_approve: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ApproveRequest"];
            };
        };
        responses: {
            /** @description Approve the plan as one more person */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_admin_rollouts_rollout_undo: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                rollout: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["UndoRequest"];
            };
        };
        responses: {
            /** @description Revert /v1/admin/rollouts/{rollout} to the version before */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_v1_session: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Who this caller is, and what it may do */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    delete_v1_session: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description End this browser's session */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    post_v1_session_code: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CodeRequest"];
            };
        };
        responses: {
            /** @description A one-time code that signs a browser in as this caller, for a minute */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
    get_openapi_json: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description This description */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>;
                };
            };
            /** @description Refused, with the reason in one line */
            "4XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
            /** @description Temporarily unavailable, or a defect of the server */
            "5XX": {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Refusal"];
                };
            };
        };
    };
}
