# Needs nothing beyond the classic builder, so that it builds with any engine since 17.05.
FROM golang:1.26-bookworm AS build

# How modules are fetched, for networks with a proxy of their own; empty means Go's defaults.
ARG GOPROXY
ARG GOSUMDB

WORKDIR /src

# A layer of its own: modules are fetched again only when they change.
COPY go.mod go.sum ./
RUN go mod download

# What `tokenring version` says.
ARG VERSION
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /out/tokenring ./cmd/tokenring

FROM scratch

# For rediss:// URLs.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/tokenring /tokenring

# A number, so that orchestrators can tell that it is not root.
USER 65532:65532

# Checks over HTTP and gRPC, admin, gossip, peers.
EXPOSE 8080 8081 8082 7946/tcp 7946/udp 7947

HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["/tokenring", "health"]

ENTRYPOINT ["/tokenring"]
CMD ["serve"]
