# Two commands do everything: `make demo` and `make test`. The rest is for people who change the code.
.DEFAULT_GOAL := help
.PHONY: help upgrade-drill alerts arm chart setup setup-agent lock lock-check release release-check images deb setup-demo demo test mutants heavy heavy-ci heavy-ci-examples heavy-ci-forge heavy-ci-gangs heavy-ci-projects live live-llm live-mlserver check client-types lint gauges diagrams docs bench bench-trust bench-forge bench-forge-parts bench-hub bench-jobs bench-large bench-llm bench-llm-peers bench-console bench-ray bench-region bench-rollout bench-sim bench-sources forge-nets forge-unseen bench-policies fuzz-policies bench-soak sim clean

python := .venv/bin/python
ARGS ?=
nets = tests/live/forge/test_forge_nets.py
ci_forge = equal_model_data_and_seed
ci_gangs = 0x2x0 or 2x0x2 or 2x2x0

# The tests start hundreds of interpreters: each module is compiled once.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: ## .venv with everything for development, and Mosquitto where it is missing (YES=1: do not ask)
	@./setup.sh dev

setup-agent: ## .venv with what a device needs and no more: no torch, no broker
	@./setup.sh agent

lock: setup ## pin what is installed here, with hashes, in deploy/requirements (after the tests have passed with it)
	@$(python) deploy/lock.py make

lock-check: setup ## the lock is what is installed here and what pyproject.toml asks for
	@$(python) deploy/lock.py check

release: setup ## wheels of agent, hub and demo, and both clients in dist/; for each lock a CycloneDX bill of materials and the licences
	@$(python) deploy/release.py

release-check: setup ## the artefacts of a release, installed by pip and npm alone for each Python (PYTHONS='python3.11 python3.13'), and run
	@SKERRY_RELEASE_PYTHONS="$(PYTHONS)" $(python) -m pytest -m heavy --timeout=1800 -s tests/live/packages/test_release.py $(ARGS)

images: setup ## container images of agent and hub by podman, on a base of debootstrap's (root, Debian; ARGS=agent)
	@$(python) deploy/images.py $(ARGS)

deb: setup ## Debian packages of agent and hub in dist/, with their Python packages (ARGS='agent --quick')
	@$(python) deploy/debian.py $(ARGS)

arm: setup ## the tests of a device on 64-bit ARM, under an emulator (root; debootstrap, qemu-user-static; an hour; ARGS=tests/wire)
	@$(python) deploy/arm.py $(ARGS)

setup-demo:
	@./setup.sh demo

demo: setup-demo ## set up what is missing, then watch a small fleet do the job (ARGS='--json FILE', '--keep', '--open')
	@.venv/bin/skerry demo $(ARGS)

test: setup ## set up what is missing, then run the quick tests, which need no broker (ARGS='-k name')
	@$(python) -m pytest --ignore=tests/live -m 'not heavy and not further and not postgres' -n auto --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS)

heavy: setup ## what `make test` leaves out: long tests, further cases, property tests with all their examples
	@SKERRY_EXAMPLES=full $(python) -m pytest --ignore=tests/live -m 'heavy or further or hypothesis or examples' --timeout=900 -n auto --dist loadscope $(ARGS)
	@$(python) -m pytest tests/live --ignore=$(nets) -m heavy --timeout=900 $(ARGS)

mutants: setup ## plant faults one at a time into what decides, and list those that no quick test notices (ARGS='--count 60 --seed 2', or ARGS=--ci for about 60 that stay the same)
	@$(python) -m tests.mutation $(ARGS)

upgrade-drill: setup ## 20 devices and their hub, with data and under load, from the newest tag (or RELEASE=COMMIT) to this tree
	@SKERRY_UPGRADE_FROM=$(RELEASE) $(python) -m pytest -m heavy --timeout=1500 -s tests/live/fleet/test_upgrade.py $(ARGS)

heavy-ci: heavy-ci-gangs heavy-ci-forge heavy-ci-examples heavy-ci-projects ## of those, what fits an hour; `.ci/run` runs them while there is time

heavy-ci-examples: setup ## all examples of property tests, and further cases
	@SKERRY_EXAMPLES=full $(python) -m pytest --ignore=tests/live -m 'further or hypothesis or examples' --timeout=600 -n auto --dist loadscope $(ARGS)

heavy-ci-forge: setup ## a forge run whose outcome is known, and the page of engines
	@$(python) -m pytest -m heavy --timeout=900 -k '$(ci_forge) or engines.md' tests/models/forge/pipeline/test_forge.py tests/test_docs.py $(ARGS)

heavy-ci-gangs: setup ## a pipeline, replicas and a mixed gang, and the page of rollouts
	@$(python) -m pytest -m heavy --timeout=900 -k '$(ci_gangs) or rollout.md' tests/live/hub/test_sharded_engines.py tests/live/test_docs.py $(ARGS)

heavy-ci-projects: setup ## the worked examples as a person runs them, each held to its figure (SKERRY_DATA=folder)
	@$(python) -m pytest -m heavy --timeout=1800 -k an_example tests/live/clients/test_projects.py --durations=5 $(ARGS)

live: setup ## the tests against the real Mosquitto, a real PostgreSQL, real processes and sockets
	@$(python) -m pytest $(or $(ARGS),tests/live --ignore=$(nets) --ignore=tests/live/hub/test_alerts.py -m 'not heavy' --timeout=600 -n 2 --dist loadscope --durations=25)
	@$(if $(ARGS),true,$(python) -m pytest tests/cloud_hub -m postgres --timeout=600 -n 2 --dist loadfile --durations=10)

chart: setup ## the Helm chart by helm and the schemas of Kubernetes, its pods as processes, the container files (docs/kubernetes.md)
	@$(python) -m pytest tests/test_chart.py tests/live/kubernetes tests/live/packages --timeout=900 --durations=10 $(ARGS)

live-llm: setup ## the tests against vLLM (on this processor) and MLServer, each in an environment of its own (4 GB, kept)
	@$(python) -m benchmarks.harness.environments vllm mlserver
	@SKERRY_LIVE_LLM=1 $(python) -m pytest $(or $(ARGS),tests/live/engines) --timeout=900 --durations=25

live-mlserver: setup ## the tests against MLServer alone, in an environment of its own (0.5 GB, kept; Python 3.12 at most)
	@$(python) -m benchmarks.harness.environments mlserver
	@SKERRY_LIVE_LLM=1 $(python) -m pytest tests/live/engines/test_mlserver.py --timeout=600 --durations=5 $(ARGS)

forge-nets: setup ## every kind of network of the tests through the whole forge (ten minutes)
	@$(python) -m pytest $(nets) $(ARGS)

forge-unseen: setup ## sixteen networks the forge was not written for: cut, exported, run by a hub (ARGS=FOLDER: and forged there)
	@$(python) -m benchmarks.forge.unseen_nets $(ARGS)

lint: setup ## ruff, mypy --strict, the import contracts
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy
	@.venv/bin/lint-imports

gauges: setup ## sizes of files, functions and folders; they are looked at, they fail nothing
	@$(python) -m tests.gauges

diagrams: setup ## draw the state machines of docs/architecture.md from their tables in the code
	@$(python) -m tests.diagrams

alerts: ## the alert rules and their tests, by promtool
	@command -v promtool >/dev/null || { echo "make alerts: promtool is missing: apt-get install --no-install-recommends prometheus" >&2; exit 1; }
	@cd deploy/prometheus && promtool check rules alerts.yml && promtool test rules alerts_test.yml && promtool check config prometheus.yml

check: lint test live ## all that must be green before a change lands

docs: setup ## the documentation site in .cache/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict --quiet $(ARGS)

bench: setup ## measure every figure of benchmarks/RESULTS.md in one run and write it
	@$(python) -m benchmarks $(ARGS)

bench-trust: setup ## the figures of enrolment and of the update repository
	@$(python) -m benchmarks trust $(ARGS)

bench-forge: setup ## forge every set for three seeds and write the table; goes on after a kill (SKERRY_DATA=folder; espeak-ng; ARGS='--sets cmapss --seeds 11')
	@$(python) -m benchmarks.forge.run $(ARGS)

bench-forge-parts: setup ## the figures of routing, of risk guarantees and of quantised graphs (SKERRY_DATA=folder)
	@$(python) -m benchmarks forge-parts $(ARGS)

bench-policies: setup ## what a decision costs under 50 rules (ARGS=PYTHON: an interpreter with cedarpy and regopy, beside them)
	@$(python) -m benchmarks.agent.policy_cost $(ARGS)

fuzz-policies: setup ## 100,000 random policies and samples through each property test of the policy language
	@SKERRY_EXAMPLES=100000 $(python) -m pytest tests/policies -n auto -k 'narrow or unlisted or brute or characters_changed' $(ARGS)

bench-hub: setup ## the hub beside LitServe, MLServer, BentoML and Ray Serve, each in an environment of its own (1.5 GB)
	@$(python) -m benchmarks.hub.peers --install
	@$(python) -m benchmarks hub $(ARGS)

bench-jobs: setup ## jobs beside pgqueuer in an environment of its own, beside online work, under kills; scaling; a notice (ARGS='--only scaling')
	@$(python) -m benchmarks.harness.environments pgqueuer
	@$(python) -m benchmarks jobs $(ARGS)

bench-large: setup ## large models: bytes of devices, starts, ranks, encoders, cards; goes on after a kill (ARGS='--only cards --json')
	@$(python) -m benchmarks.large $(ARGS)

bench-llm: setup ## the hub before the double of an engine: what it adds to a stream, an engine killed, overload, prefixes, the bill
	@$(python) -m benchmarks llm $(ARGS)

bench-llm-peers: setup ## vLLM and MLServer behind the hub, litellm's proxy beside it, each in an environment of its own (4.5 GB, kept)
	@$(python) -m benchmarks.harness.environments vllm mlserver litellm
	@$(python) -m benchmarks llm-peers $(ARGS)

bench-ray: setup ## ranks on three nodes of a Ray cluster of this machine beside ranks forked here; nodes lost under load (ARGS='--only steps')
	@$(python) -m benchmarks ray $(ARGS)

bench-region: setup ## hubs that share one PostgreSQL: the store, intake before and after, two and three hubs, what faults cost (ARGS='--only store --json')
	@$(python) -m benchmarks region $(ARGS)

bench-rollout: setup ## good and bad versions through a simulated fleet, beside newest-wins and status alone (SKERRY_DATA=folder)
	@$(python) -m benchmarks rollout $(ARGS)

bench-console: setup ## the console in Chromium with 10,000 devices, and from a clone to an answer in the browser (ARGS='--only pages')
	@$(python) -m benchmarks console $(ARGS)

bench-soak: setup ## a day of faults in virtual time, and an hour of them live, whose memory and descriptors are judged (70 minutes)
	@.venv/bin/skerry sim run soak $(ARGS)
	@.venv/bin/skerry sim live soak --minutes 60 $(ARGS)

bench-sources: setup ## what a camera costs over a real RTSP server, a still and a moving scene; and sensors at 1,000 messages a second
	@$(python) -m benchmarks sources $(ARGS)

bench-sim: setup ## the simulator's figures: steady and million in virtual time, live agents on this machine
	@$(python) -m benchmarks sim $(ARGS)

sim: setup ## ask a simulated fleet a question (ARGS='partition --seed 2'; `skerry sim list` names them)
	@.venv/bin/skerry sim run $(or $(ARGS),storm)

client-types: setup ## the types of the TypeScript client, from the routes as they are (node 20; packages from npm, kept in .cache)
	@PYTHONPATH=clients/python $(python) -m tests.clients.typescript

clean: ## remove .venv and every cache of this folder
	rm -rf .venv .cache build dist *.egg-info .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
