package members

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	hurry    = 50 * time.Millisecond // between attempts while this node is joining
	patience = time.Second           // between attempts for members that are missing
)

// rejoin asks the seeds and the lost members again and again, since memberlist itself
// never goes back to a node that it has given up.
func (m *Members) rejoin(ctx context.Context) {
	wait := hurry
	for {
		rivals := m.round(ctx)
		switch {
		case m.record.state() != Joining:
			wait = patience
		case rivals:
			wait = 2 * hurry
		default:
			wait = min(2*wait, patience/2)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(jittered(wait)):
		}
	}
}

// round exchanges states once with everybody who is missing. A node that has not met the
// cluster, or has a rival that may live, asks those too that it knows by gossip: they will
// say when the rival is gone. It reports whether there is one.
func (m *Members) round(ctx context.Context) (rivals bool) {
	asked, resolved := m.missing(ctx)
	if m.record.state() == Joining {
		if !m.record.hasMet() || len(m.record.rivals()) > 0 {
			asked = slices.AppendSeq(asked, maps.Keys(m.record.living()))
		}
		if len(asked) == 0 && resolved {
			m.record.meet() // every seed is this node itself
		}
	}
	m.record.beginRound()
	joined := 0
	for _, addr := range asked {
		if n, err := m.list.Join([]string{addr}); n > 0 {
			joined++
		} else if ctx.Err() == nil {
			m.unjoined(addr, err)
		}
	}
	if joined > 0 {
		m.record.endRound()
	}
	return len(m.record.rivals()) > 0
}

// unjoined deals with a seed that did not let this node in. A refusal of its cluster
// ends a node that is joining; a running node reports it and goes on.
func (m *Members) unjoined(addr string, err error) {
	// Memberlist flattens errors to text, so the refusal is found again by its own.
	refusal := m.record.lastRefusal()
	if refusal == nil || !strings.Contains(err.Error(), refusal.Error()) {
		m.config.Logger.Debug("no answer from a seed", "addr", addr, "error", err)
		return
	}
	if m.record.state() == Joining {
		m.fail(refusal)
		return
	}
	m.config.Logger.Warn("a seed or lost member is of no use", "addr", addr, "error", refusal)
}

// missing returns the gossip addresses of seeds and lost members that are not listed, and
// whether all seeds could be resolved.
func (m *Members) missing(ctx context.Context) (addrs []string, resolved bool) {
	resolved = true
	wanted, living := m.record.lost(), m.record.living()
	for _, seed := range m.seeds {
		found := m.resolve(ctx, seed)
		resolved = resolved && len(found) > 0
		wanted = append(wanted, found...)
	}
	slices.Sort(wanted)
	return slices.DeleteFunc(slices.Compact(wanted), func(addr string) bool {
		return living[addr] || m.isSelf(addr)
	}), resolved
}

// resolve returns the addresses that a seed stands for.
func (m *Members) resolve(ctx context.Context, seed string) []string {
	host, port, err := net.SplitHostPort(seed)
	if err != nil {
		return nil // settings have refused such a seed
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{seed}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	hosts, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			m.config.Logger.Debug("seed not resolved", "seed", seed, "error", err)
		}
		return nil
	}
	for i := range hosts {
		hosts[i] = net.JoinHostPort(hosts[i], port)
	}
	return hosts
}

// withoutSelf drops this node's own address from the seeds.
func (m *Members) withoutSelf(seeds []string) []string {
	return slices.DeleteFunc(slices.Clone(seeds), m.isSelf)
}

// isSelf reports whether an address is that of this node's own gossip port.
func (m *Members) isSelf(addr string) bool {
	host, port, err := splitPort(addr)
	if err != nil || port != m.port {
		return false
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	if ip = ip.Unmap(); ip.String() == m.host {
		return true
	}
	bound, _, _ := net.SplitHostPort(m.config.Bind)
	if b, err := netip.ParseAddr(bound); err == nil && !b.IsUnspecified() {
		return ip == b.Unmap()
	}
	// Bound to every address of this machine, which all count as its own then.
	local, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(local, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr().Unmap() == ip
	})
}

// advertised returns the address that others reach this node at: the given host, else
// the address that is bound, else the one that this machine sends from, else loopback.
func advertised(ctx context.Context, host, bound string) (string, error) {
	if host == "" {
		host = bound
	}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() {
		return ip.Unmap().String(), nil
	} else if err != nil && host != "" {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return "", fmt.Errorf("resolve advertised host: %w", err)
		}
		if v4 := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Unmap().Is4() }); v4 >= 0 {
			return ips[v4].Unmap().String(), nil
		}
		return ips[0].String(), nil
	}
	// Connecting a UDP socket sends nothing: it only asks the system for a route. The
	// addresses are those set aside for examples.
	for _, far := range []string{"203.0.113.1:9", "[2001:db8::1]:9"} {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "udp", far)
		if err != nil {
			continue // no route of this family
		}
		defer conn.Close()
		if from, ok := conn.LocalAddr().(*net.UDPAddr); ok {
			return from.AddrPort().Addr().Unmap().WithZone("").String(), nil
		}
	}
	return "127.0.0.1", nil
}

// everywhere is the bind address for all addresses of the family of the advertised one.
func everywhere(advertised string) string {
	if ip, err := netip.ParseAddr(advertised); err == nil && ip.Is6() {
		return "::"
	}
	return "0.0.0.0"
}

func splitPort(addr string) (host string, port int, err error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(service)
	return host, port, err
}
