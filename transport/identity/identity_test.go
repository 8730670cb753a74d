package identity

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func mustPrefixes(t testing.TB, s string) []netip.Prefix {
	t.Helper()
	p, err := ParsePrefixes(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func resolver(t testing.TB) *Resolver {
	return New(Config{
		TrustedProxies: mustPrefixes(t, "127.0.0.0/8, ::1/128, 10.0.0.0/8, 2001:db8:f::/48, fe80::/10"),
		TrustedCallers: mustPrefixes(t, "127.0.0.0/8,::1,192.0.2.77"),
	})
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name string
		peer string
		xff  []string
		want string // key
	}{
		{"no header", "198.51.100.1", nil, "198.51.100.1"},
		{"no header from a proxy", "10.0.0.1", nil, "10.0.0.1"},
		{"header from a peer that is no proxy", "198.51.100.1", []string{"203.0.113.9"}, "198.51.100.1"},
		{"one hop", "10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"spoofed entry further left", "10.0.0.1", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		{"spoofed trusted entry further left", "10.0.0.1", []string{"127.0.0.1, 203.0.113.9"}, "203.0.113.9"},
		{"spoofed whole chain", "10.0.0.1", []string{"127.0.0.1, 10.0.0.2, 203.0.113.9, 10.0.0.3"}, "203.0.113.9"},
		{"spoofed header line before the proxy's", "10.0.0.1", []string{"127.0.0.1", "203.0.113.9"}, "203.0.113.9"},
		{"two lines are one list", "10.0.0.1", []string{"1.1.1.1,203.0.113.9", "10.0.0.3, 10.0.0.2"}, "203.0.113.9"},
		{"proxies skipped", "127.0.0.1", []string{"203.0.113.9, 10.1.1.1, 10.2.2.2"}, "203.0.113.9"},
		{"all trusted", "127.0.0.1", []string{"10.9.9.9, 10.1.1.1", "10.2.2.2"}, "10.9.9.9"},
		{"many hops", "10.0.0.1", []string{"203.0.113.9" + strings.Repeat(", 10.0.0.2", 5000)}, "203.0.113.9"},
		{"many lines", "10.0.0.1", append([]string{"203.0.113.9"}, slices.Repeat([]string{"10.0.0.2"}, 5000)...), "203.0.113.9"},

		{"port", "10.0.0.1", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		{"port of a proxy", "10.0.0.1", []string{"203.0.113.9, 10.0.0.2:80"}, "203.0.113.9"},
		{"IPv6", "10.0.0.1", []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		{"IPv6 in brackets", "10.0.0.1", []string{"[2001:db8:1:2:3:4:5:6]"}, "2001:db8:1:2::/64"},
		{"IPv6 with a port", "10.0.0.1", []string{"[2001:db8:1:2:3:4:5:6]:443"}, "2001:db8:1:2::/64"},
		{"IPv6 proxy", "2001:db8:f::7", []string{"203.0.113.9, 2001:db8:f:1::8"}, "203.0.113.9"},
		{"last group is no port", "10.0.0.1", []string{"2001:db8::1:443"}, "2001:db8::/64"},
		{"zone", "10.0.0.1", []string{"2001:db8:1:2::3%eth0"}, "2001:db8:1:2::/64"},
		{"zone, brackets and port", "10.0.0.1", []string{"[2001:db8:1:2::3%eth0]:1"}, "2001:db8:1:2::/64"},
		{"proxy with a zone", "fe80::1%eth0", []string{"203.0.113.9"}, "203.0.113.9"},
		{"proxy with a zone in the list", "10.0.0.1", []string{"203.0.113.9, fe80::1%eth1"}, "203.0.113.9"},
		{"mapped client", "10.0.0.1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"mapped client with brackets and port", "10.0.0.1", []string{"[::ffff:203.0.113.9]:80"}, "203.0.113.9"},
		{"mapped client with a zone", "10.0.0.1", []string{"::ffff:203.0.113.9%eth0"}, "203.0.113.9"},
		{"mapped peer", "::ffff:198.51.100.1", []string{"203.0.113.9"}, "198.51.100.1"},
		{"mapped proxy", "::ffff:10.0.0.1", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
		{"spaces and tabs", "10.0.0.1", []string{"1.1.1.1 ,\t203.0.113.9\t ,  10.0.0.2  "}, "203.0.113.9"},

		{"garbage alone", "10.0.0.1", []string{"garbage"}, "10.0.0.1"},
		{"garbage right of the client", "10.0.0.1", []string{"203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"garbage left of the client", "10.0.0.1", []string{"unknown, 203.0.113.9"}, "203.0.113.9"},
		{"empty header", "10.0.0.1", []string{""}, "10.0.0.1"},
		{"empty entry", "10.0.0.1", []string{"203.0.113.9, , 10.0.0.2"}, "10.0.0.2"},
		{"comma at the end", "10.0.0.1", []string{"203.0.113.9,"}, "10.0.0.1"},
		{"commas alone", "10.0.0.1", []string{",,,"}, "10.0.0.1"},
		{"port out of range", "10.0.0.1", []string{"203.0.113.9:65536"}, "10.0.0.1"},
		{"port that is a word", "10.0.0.1", []string{"203.0.113.9:http"}, "10.0.0.1"},
		{"no port after the colon", "10.0.0.1", []string{"203.0.113.9:"}, "10.0.0.1"},
		{"IPv4 in brackets", "10.0.0.1", []string{"[203.0.113.9]"}, "10.0.0.1"},
		{"bracket left open", "10.0.0.1", []string{"[2001:db8::1"}, "10.0.0.1"},
		{"brackets alone", "10.0.0.1", []string{"[]"}, "10.0.0.1"},
		{"port alone", "10.0.0.1", []string{":80"}, "10.0.0.1"},
		{"leading zeros", "10.0.0.1", []string{"203.0.113.009"}, "10.0.0.1"},
		{"number", "10.0.0.1", []string{"3405803785"}, "10.0.0.1"},
		{"network", "10.0.0.1", []string{"203.0.113.0/24"}, "10.0.0.1"},
		{"name", "10.0.0.1", []string{"localhost"}, "10.0.0.1"},
		{"quoted", "10.0.0.1", []string{`"203.0.113.9"`}, "10.0.0.1"},
		{"other separators", "10.0.0.1", []string{"203.0.113.9; 203.0.113.8"}, "10.0.0.1"},
		{"bytes that are no text", "10.0.0.1", []string{"\xff\xfe\x00"}, "10.0.0.1"},

		{"IPv6 peer", "2001:db8:1:2:3:4:5:6", nil, "2001:db8:1:2::/64"},
		{"IPv6 peer with a zone", "fe80::1:2:3%eth0", nil, "fe80::/64"},
		{"IPv6 loopback", "::1", nil, "::/64"},
	} {
		if got := resolver(t).Resolve(netip.MustParseAddr(c.peer), c.xff).Key(); got != c.want {
			t.Errorf("%s: %s with %.80q is %s, want %s", c.name, c.peer, c.xff, got, c.want)
		}
	}
}

func TestTrusted(t *testing.T) {
	for _, c := range []struct {
		peer string
		xff  []string
		want bool
	}{
		{"127.0.0.1", nil, true},
		{"127.8.9.10", nil, true},
		{"::1", nil, true},
		{"::ffff:127.0.0.1", nil, true},
		{"198.51.100.1", nil, false},
		{"10.0.0.1", nil, false}, // a proxy, but no caller
		{"::2", nil, false},      // in the same /64 as a caller
		{"127.0.0.1", []string{"203.0.113.9"}, false},
		{"10.0.0.1", []string{"192.0.2.77"}, true},
		{"10.0.0.1", []string{"::ffff:192.0.2.77"}, true},
		{"198.51.100.1", []string{"127.0.0.1"}, false},
		{"198.51.100.1", []string{"192.0.2.77"}, false},
		{"10.0.0.1", []string{"127.0.0.1, 203.0.113.9"}, false},
	} {
		if got := resolver(t).Resolve(netip.MustParseAddr(c.peer), c.xff).Trusted; got != c.want {
			t.Errorf("%s with %q: trusted is %v", c.peer, c.xff, got)
		}
	}
	nobody := New(Config{}).Resolve(netip.MustParseAddr("127.0.0.1"), []string{"203.0.113.9"})
	if nobody.Trusted || nobody.Key() != "127.0.0.1" {
		t.Errorf("the zero Config trusts somebody: %+v", nobody)
	}
	everybody := New(Config{TrustClientID: true}).Resolve(netip.MustParseAddr("203.0.113.9"), nil)
	if !everybody.Trusted {
		t.Error("TrustClientID trusts nobody")
	}
}

func TestParsePrefixes(t *testing.T) {
	got, err := ParsePrefixes("127.0.0.0/8,::1", "", " 192.0.2.1 , 2001:db8::1/32,,")
	want := []netip.Prefix{
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::1/128"),
		netip.MustParsePrefix("192.0.2.1/32"),
		netip.MustParsePrefix("2001:db8::1/32"),
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, c := range []struct{ prefix, inside, outside string }{
		{"10.1.2.3/8", "10.200.0.1", "11.0.0.1"},
		{"::ffff:10.0.0.0/104", "10.200.0.1", "11.0.0.1"},
		{"::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2"},
		{"2001:db8::7/32", "2001:db8:9::1", "2001:db9::1"},
		{"0.0.0.0/0", "203.0.113.9", "2001:db8::1"},
		{"::/0", "2001:db8::1", "203.0.113.9"},
	} {
		r := New(Config{TrustedCallers: mustPrefixes(t, c.prefix)})
		if !r.Resolve(netip.MustParseAddr(c.inside), nil).Trusted {
			t.Errorf("%s does not hold %s", c.prefix, c.inside)
		}
		if r.Resolve(netip.MustParseAddr(c.outside), nil).Trusted {
			t.Errorf("%s holds %s", c.prefix, c.outside)
		}
	}
}

func TestParsePrefixesErrors(t *testing.T) {
	for _, wrong := range []string{
		"10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "10.0.0.256", "localhost", "fe80::1%eth0", "fe80::/10%eth0", "[::1]",
		"::ffff:10.0.0.0/95", "10.0.0.1:80", "10.0.0.0/8 10.1.0.0/16", "*",
	} {
		_, err := ParsePrefixes("127.0.0.1", "::1,"+wrong+",10.0.0.0/8")
		want := `"` + wrong + `" is not a network: want IP addresses or networks such as 10.0.0.0/8 or 2001:db8::/32, separated by commas`
		if err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", wrong, err, want)
		}
	}
}

// Whatever a client writes to the left of what trusted proxies wrote, it stays itself.
func FuzzResolve(f *testing.F) {
	for _, seed := range []string{"", "127.0.0.1", "203.0.113.9:80, [::1]:443", "::ffff:10.0.0.1%eth0,", "[", "a,b\x00,:", "10.0.0.1,10.0.0.2"} {
		f.Add(seed, seed)
	}
	r := resolver(f)
	proxy, client := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.9")
	f.Fuzz(func(t *testing.T, first, second string) {
		if got := r.Resolve(client, []string{first, second}); got.Addr != client {
			t.Errorf("%q, %q: a peer that is no proxy became %v", first, second, got.Addr)
		}
		if got := r.Resolve(proxy, []string{first, second + ",203.0.113.9, 10.0.0.7"}); got.Addr != client {
			t.Errorf("%q, %q: the client became %v", first, second, got.Addr)
		}
		got := r.Resolve(proxy, []string{first, second})
		if !got.Addr.IsValid() || got.Addr.Is4In6() || got.Addr.Zone() != "" {
			t.Errorf("%q, %q: client %v", first, second, got.Addr)
		}
		if joined := r.Resolve(proxy, []string{first + "," + second}); joined != got {
			t.Errorf("%q, %q: %v as two lines, %v as one", first, second, got, joined)
		}
	})
}

func BenchmarkResolve(b *testing.B) {
	r := resolver(b)
	peer, xff := netip.MustParseAddr("127.0.0.1"), []string{"203.0.113.9, 10.0.0.2"}
	b.ReportAllocs()
	for b.Loop() {
		r.Resolve(peer, xff)
	}
}
