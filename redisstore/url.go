package redisstore

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const allowed = "allowed are redis://[user:password@]host[:port][/db], rediss:// for TLS, " +
	"unix://[user:password@]/path[?db=N], several of these separated by commas for shards, " +
	"or redis+cluster://host:port,host:port for a Redis Cluster"

// address says how to reach a server.
type address struct {
	network  string // tcp or unix
	addr     string // host:port, or a path
	user     string
	password string
	db       int
	tls      *tls.Config
}

// name tells servers apart; it holds no secret.
func (a address) name() string {
	if a.db == 0 {
		return a.addr
	}
	return a.addr + "/" + strconv.Itoa(a.db)
}

// options leave out all that go-redis does beyond sending: it must neither send twice
// nor wait, and the store has a few connections of its own for each server.
func (a address) options(timeout time.Duration) *redis.Options {
	return &redis.Options{
		Network:                  a.network,
		Addr:                     a.addr,
		Username:                 a.user,
		Password:                 a.password,
		DB:                       a.db,
		TLSConfig:                a.tls,
		Protocol:                 2,
		DialTimeout:              timeout,
		ReadTimeout:              timeout,
		WriteTimeout:             timeout,
		ContextTimeoutEnabled:    true,
		MaxRetries:               -1,
		DialerRetries:            1,
		PoolSize:                 4,
		PipelinePoolSize:         -1,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// clusterURL is a Redis Cluster: some of its nodes, and how to reach each of them.
type clusterURL struct {
	address
	hosts []string
}

// servers is what a URL names: single servers, or a cluster.
type servers struct {
	servers []address
	cluster *clusterURL
}

// parseURL reads Config.URL. No error holds what could be a password, which is also why
// those of net/url are not passed on.
func parseURL(s string) (servers, error) {
	if scheme, rest, _ := strings.Cut(s, "://"); scheme == "redis+cluster" || scheme == "rediss+cluster" {
		c, err := parseCluster(scheme == "rediss+cluster", rest)
		if err != nil {
			return servers{}, fmt.Errorf("redis URL: %w; %s", err, allowed)
		}
		return servers{cluster: c}, nil
	}
	var all servers
	seen := map[string]bool{}
	for i, part := range strings.Split(s, ",") {
		a, err := parseServer(strings.TrimSpace(part))
		if err == nil && seen[a.name()] {
			err = fmt.Errorf("%s is named twice", a.name())
		}
		if err != nil {
			return servers{}, fmt.Errorf("redis URL, address %d: %w; %s", i+1, err, allowed)
		}
		seen[a.name()] = true
		all.servers = append(all.servers, a)
	}
	return all, nil
}

func parseServer(s string) (address, error) {
	u, err := parse(s)
	if err != nil {
		return address{}, err
	}
	a := address{network: "tcp", user: u.User.Username()}
	a.password, _ = u.User.Password()
	db := strings.TrimPrefix(u.Path, "/")
	switch u.Scheme {
	case "redis", "rediss":
		if a.addr, err = hostPort(u.Host); err != nil {
			return address{}, err
		}
		if u.Scheme == "rediss" {
			a.tls = tlsConfig(u.Hostname())
		}
		if u.RawQuery != "" {
			return address{}, fmt.Errorf("parameters are not supported")
		}
	case "unix":
		if u.Host != "" || u.Path == "" {
			return address{}, fmt.Errorf("a unix URL needs an absolute path and no host")
		}
		a.network, a.addr = "unix", u.Path
		query := u.Query()
		db = query.Get("db")
		if query.Del("db"); len(query) > 0 {
			return address{}, fmt.Errorf("no parameter but db is supported")
		}
	case "redis+cluster", "rediss+cluster":
		return address{}, fmt.Errorf("a Redis Cluster cannot be one of several shards")
	default:
		return address{}, fmt.Errorf("scheme %q is not supported", u.Scheme)
	}
	if db != "" {
		if a.db, err = strconv.Atoi(db); err != nil || a.db < 0 {
			return address{}, fmt.Errorf("the database must be a number from 0 on")
		}
	}
	return a, nil
}

// parseCluster reads what comes after the scheme: [user:password@]host:port,host:port.
func parseCluster(secure bool, rest string) (*clusterURL, error) {
	c := &clusterURL{address: address{network: "tcp"}}
	for i, part := range strings.Split(rest, ",") {
		u, err := parse("redis://" + strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("address %d: %w", i+1, err)
		}
		if i > 0 && u.User != nil {
			return nil, fmt.Errorf("address %d: user and password belong to the first address", i+1)
		}
		if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("address %d: a Redis Cluster has no databases and parameters are not supported", i+1)
		}
		host, err := hostPort(u.Host)
		if err != nil {
			return nil, fmt.Errorf("address %d: %w", i+1, err)
		}
		if i == 0 {
			c.user = u.User.Username()
			c.password, _ = u.User.Password()
			if secure {
				c.tls = tlsConfig(u.Hostname())
			}
		}
		c.hosts = append(c.hosts, host)
	}
	return c, nil
}

func parse(s string) (*url.URL, error) {
	if s == "" {
		return nil, fmt.Errorf("it is empty")
	}
	if !strings.Contains(s, "://") {
		return nil, fmt.Errorf("it has no scheme")
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" || u.Fragment != "" {
		return nil, fmt.Errorf("it is no URL; in user and password, characters other than letters and digits must be percent-encoded")
	}
	return u, nil
}

func hostPort(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil { // no port
		host, port = strings.Trim(s, "[]"), "6379"
	}
	if host == "" {
		return "", fmt.Errorf("it has no host")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("its port is not a number from 1 to 65535")
	}
	return net.JoinHostPort(host, port), nil
}

func tlsConfig(host string) *tls.Config {
	return &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
}
