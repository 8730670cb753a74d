// Package identity says who a client is: which IP address counts, and what the client
// may ask for.
//
// A client is the TCP peer, unless that is a trusted proxy: then X-Forwarded-For, which
// proxies append to, is walked from the right for as long as it was written by trusted
// proxies. What stands further left was written by somebody who is not trusted, so that
// a client cannot choose its own address.
package identity

import (
	"net"
	"net/netip"
	"strings"
)

// Config says whom to trust. Nobody is trusted unless named here.
type Config struct {
	TrustedProxies []netip.Prefix // TCP peers whose X-Forwarded-For is believed
	TrustedCallers []netip.Prefix // clients that may send keys, inline limits, negative costs
	TrustClientID  bool           // every client is a trusted caller
}

// A Resolver finds out who a client is. It never changes and may be used by many at once.
type Resolver struct {
	proxies  []netip.Prefix
	callers  []netip.Prefix
	trustAll bool
}

// New returns a resolver for c.
func New(c Config) *Resolver {
	return &Resolver{
		proxies:  normalizeAll(c.TrustedProxies),
		callers:  normalizeAll(c.TrustedCallers),
		trustAll: c.TrustClientID,
	}
}

// A Client is whoever asked.
type Client struct {
	Addr    netip.Addr // never an IPv4-mapped IPv6 address, and without a zone
	Trusted bool       // may send keys, inline limits and negative costs
}

// Key is the client's address as a key. An IPv6 address counts as its /64, since that is
// what one subscriber gets, and prints as 2001:db8:1:2::/64.
func (c Client) Key() string {
	if !c.Addr.Is6() {
		return c.Addr.String()
	}
	return netip.PrefixFrom(c.Addr, 64).Masked().String()
}

// Peer returns the IP address of the other end of a TCP connection.
func Peer(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}

// Resolve returns the client behind a TCP peer. The values of its X-Forwarded-For
// headers count as one list.
func (r *Resolver) Resolve(peer netip.Addr, forwardedFor []string) Client {
	addr := normalize(peer)
	if len(forwardedFor) > 0 && contains(r.proxies, addr) {
		addr = r.walk(addr, forwardedFor)
	}
	return Client{Addr: addr, Trusted: r.trustAll || contains(r.callers, addr)}
}

// walk goes through the list from the right and returns the first address that is not a
// trusted proxy. If there is none, the last one walked counts: the leftmost of all, or
// the one to the right of an entry that is no address.
func (r *Resolver) walk(addr netip.Addr, forwardedFor []string) netip.Addr {
	for i := len(forwardedFor) - 1; i >= 0; i-- {
		rest, more := forwardedFor[i], true
		for more {
			var entry string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, entry = rest[:comma], rest[comma+1:]
			} else {
				entry, more = rest, false
			}
			next, ok := parseEntry(entry)
			if !ok {
				return addr
			}
			addr = next
			if !contains(r.proxies, addr) {
				return addr
			}
		}
	}
	return addr
}

// parseEntry reads an address as proxies write it: alone, in brackets, or with a port.
func parseEntry(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		addr, err := netip.ParseAddr(inner[:len(inner)-1])
		return normalize(addr), err == nil && addr.Is6()
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		return normalize(addr), true
	}
	// Several colons without brackets are an IPv6 address, which was tried above.
	addr, err := netip.ParseAddrPort(s)
	return normalize(addr.Addr()), err == nil
}

// normalize gives an address the one form in which it is compared and printed.
func normalize(addr netip.Addr) netip.Addr { return addr.Unmap().WithZone("") }

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
