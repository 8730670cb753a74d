package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/redisstore"
	"github.com/tokenring/tokenring/transport/identity"
)

// forever is a bound of durations that have none.
const forever time.Duration = math.MaxInt64

const nameWanted = "want [A-Za-z0-9][A-Za-z0-9._-]{0,63}"

func setName(to *string, v string) error {
	if !limits.ValidName(v) {
		return fmt.Errorf("%q is not a name: %s", v, nameWanted)
	}
	*to = v
	return nil
}

// setID is setName for a node, whose id must not be taken for what answers call a limit.
func setID(to *string, v string) error {
	if v == limits.InlineName || v == limits.UnknownName {
		return fmt.Errorf("%q is reserved: want another name", v)
	}
	return setName(to, v)
}

func setOneOf(to *string, v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("%q is unknown: want %s", v, strings.Join(allowed, " or "))
	}
	*to = v
	return nil
}

// setOptional is for settings whose empty value has a meaning of its own.
func setOptional(to *string, v string, set func(*string, string) error) error {
	if v == "" {
		*to = ""
		return nil
	}
	return set(to, v)
}

func setListen(to *string, v string) error {
	host, port, err := net.SplitHostPort(v)
	if err != nil || !validPort(port, 0) || host != "" && !validHost(host) {
		return fmt.Errorf("%q is not an address: want host:port or :port, port 0 to 65535", v)
	}
	*to = v
	return nil
}

func setAdvertise(to *string, v string) error {
	if ip, err := netip.ParseAddr(v); !validHost(v) || err == nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is not a host: want an IP address or a name that others can reach, without a port", v)
	}
	*to = v
	return nil
}

func setJoin(to *[]string, v string) error {
	seeds := entries(v)
	for _, seed := range seeds {
		if host, port, err := net.SplitHostPort(seed); err != nil || !validHost(host) || !validPort(port, 1) {
			return fmt.Errorf("%q is not a seed: want host:port, port 1 to 65535", seed)
		}
	}
	*to = seeds
	return nil
}

func validHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`:/[]@?#,%"\`, r)
	})
}

func validPort(s string, lowest uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= lowest
}

// setRedisURL leaves judging to the store, which connects to nothing when it is made. Its
// errors repeat no URL: there may be a password in it.
func setRedisURL(to *string, v string) error {
	*to = strings.Join(entries(v), ",")
	if *to == "" {
		return nil
	}
	store, err := redisstore.New(redisstore.Config{URL: *to})
	if err != nil {
		return err
	}
	return store.Close(context.Background())
}

// setDuration reads a duration from least to most; least is 0 or the shortest above it.
func setDuration(to *time.Duration, v string, least, most time.Duration) error {
	d, err := time.ParseDuration(v)
	if err == nil && d >= least && d <= most {
		*to = d
		return nil
	}
	want := "want such as 100ms, 5s or 1h, above 0"
	if least == 0 {
		want = "want such as 100ms, 5s or 1h, 0s or more"
	}
	if most != forever {
		want += ", at most " + most.String()
	}
	return fmt.Errorf("%q is not a duration that fits: %s", v, want)
}

func setNumber(to *int, v string, least, most int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a number that fits: want %d to %d", v, least, most)
	}
	*to = n
	return nil
}

func setSwitch(to *bool, v string) (err error) {
	if *to, err = strconv.ParseBool(v); err != nil {
		return fmt.Errorf("%q is not a switch: want true or false", v)
	}
	return nil
}

func setPrefixes(to *[]netip.Prefix, v string) (err error) {
	*to, err = identity.ParsePrefixes(v)
	return err
}

// entries are the parts of a comma-separated list; empty ones are left out.
func entries(v string) []string {
	var list []string
	for e := range strings.SplitSeq(v, ",") {
		if e = strings.TrimSpace(e); e != "" {
			list = append(list, e)
		}
	}
	return list
}
