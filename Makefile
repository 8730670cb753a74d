# Tokenring. `make` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD = -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

# Packages whose tests start no node run with the race detector, all at once; those below
# test/ start real processes and run one after another.
UNIT  = $(shell go list ./... | grep -vE '/test(/|$$)')
PARTS = ./test/...

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Builds bin/tokenring
	@CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/tokenring ./cmd/tokenring

.PHONY: run
run: build ## Builds, starts three nodes on this machine and says what to try; Ctrl-C stops them
	@exec bin/tokenring cluster --nodes 3

.PHONY: test
test: build ## Runs all tests, after installing what they need
	@test/deps.sh
	go test -race -timeout 5m $(UNIT)
	go test -count=1 -p 1 -timeout 20m $(PARTS)

.PHONY: chaos
chaos: build ## Changes, kills, stops and splits clusters in full, after 42 000 random schedules: twenty minutes
	@test/deps.sh
	go test -count=1 -timeout 20m -run TestSchedules ./node/authority -v -args -schedules 6000
	CHAOS=full go test -count=1 -timeout 90m -v ./test

.PHONY: model
model: ## Checks a model of handover and claim with spin, in three minutes
	@test/deps.sh model
	@test/model/run.sh

.PHONY: lint
lint: ## Formatting, vet, staticcheck, known vulnerabilities
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt -l:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go tool staticcheck ./...
	@test/vulncheck.sh

.PHONY: bench
bench: ## Runs the benchmarks
	go test -run '^$$' -bench . -benchmem $(UNIT)

.PHONY: proto
proto: ## Generates the code of the protocols
	@proto/generate.sh

.PHONY: up
up: ## Starts three nodes behind HAProxy in containers and says what to try
	@GOPROXY="$$(go env GOPROXY 2>/dev/null)" GOSUMDB="$$(go env GOSUMDB 2>/dev/null)" VERSION="$(VERSION)" \
		$(COMPOSE) up --build --detach
	@for i in $$(seq 120); do curl -fs "http://127.0.0.1:$${HTTP_PORT:-8080}/readyz" >/dev/null && break; sleep 0.5; done
	@echo "Try:"
	@echo "  curl -i 'http://127.0.0.1:$${HTTP_PORT:-8080}/v1/check?limit=api'"
	@echo "  $(COMPOSE) exec node-1 /tokenring members"
	@echo "make down stops it."

.PHONY: down
down: ## Stops the containers
	@COMPOSE_PROFILES=redis $(COMPOSE) down --volumes
