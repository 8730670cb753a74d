package identity

import (
	"fmt"
	"net/netip"
	"strings"
)

// mappedBits is how many bits of an IPv4-mapped IPv6 address stand before the IPv4 one.
const mappedBits = 96

// ParsePrefixes reads addresses and networks in CIDR notation, such as 10.0.0.0/8 or
// ::1; an address alone stands for itself. Each string may hold several, with commas
// between them. The error names the entry that is wrong.
func ParsePrefixes(list ...string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, s := range list {
		for entry := range strings.SplitSeq(s, ",") {
			entry = strings.TrimSpace(entry)
			if entry == "" {
				continue
			}
			p, ok := parsePrefix(entry)
			if !ok {
				return nil, fmt.Errorf("%q is not a network: want IP addresses or networks such as 10.0.0.0/8 or 2001:db8::/32, separated by commas", entry)
			}
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, false
		}
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	if p.Addr().Is4In6() && p.Bits() < mappedBits {
		return netip.Prefix{}, false // holds no IPv4 network, though it was meant to
	}
	return p, true
}

// normalizePrefix makes a network match the addresses that normalize returns.
func normalizePrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= mappedBits {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
	}
	return p.Masked()
}

func normalizeAll(prefixes []netip.Prefix) []netip.Prefix {
	normal := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		normal[i] = normalizePrefix(p)
	}
	return normal
}
