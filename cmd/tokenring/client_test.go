package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// fakeNode answers every request with a status and a body, and notes the last one.
type fakeNode struct {
	status int
	body   string
	got    string // method, path and body
	kind   string // Content-Type of the request
}

func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	n.got, n.kind = r.Method+" "+r.URL.String()+" "+string(body), r.Header.Get("Content-Type")
	w.WriteHeader(n.status)
	_, _ = io.WriteString(w, n.body)
}

func (n *fakeNode) start(t *testing.T) (addr string) {
	t.Helper()
	s := httptest.NewServer(n)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// runAt runs a command against a node and returns exit code and output.
func runAt(t *testing.T, addr, flag string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append(args, flag, addr), &out, &errs)
	return code, out.String(), errs.String()
}

// nobody returns an address where nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestCheck(t *testing.T) {
	const end = `,"limit":"api","key":"k","degraded":false,"node":"node-2"}`
	for _, c := range []struct {
		status int
		body   string
		code   int
		want   string
	}{
		{200, `{"allowed":true,"burst":20,"remaining":19,"retry_after_ms":0,"reset_after_ms":600` + end, 0,
			"allowed, 19 of 20 left, full in 600ms (limit api, node node-2)"},
		{200, `{"allowed":true,"burst":20,"remaining":20,"retry_after_ms":0,"reset_after_ms":0` + end, 0,
			"allowed, 20 of 20 left (limit api, node node-2)"},
		{200, `{"allowed":true,"burst":20,"remaining":3,"retry_after_ms":0,"reset_after_ms":-1` + end, 0,
			"allowed, 3 of 20 left (limit api, node node-2)"},
		{200, `{"allowed":true,"burst":-1,"remaining":-1,"retry_after_ms":0,"reset_after_ms":0` + end, 0,
			"allowed, unlimited (limit api, node node-2)"},
		{429, `{"allowed":false,"burst":20,"remaining":0,"retry_after_ms":1500,"reset_after_ms":60000` + end, 1,
			"denied, 0 of 20 left, again in 1.5s (limit api, node node-2)"},
		{429, `{"allowed":false,"burst":20,"remaining":20,"retry_after_ms":-1,"reset_after_ms":0` + end, 1,
			"denied, 20 of 20 left, never for this cost (limit api, node node-2)"},
		{200, `{"allowed":true,"burst":20,"remaining":0,"limit":"api","degraded":true,"node":"node-1"}`, 0,
			"allowed, by the failure policy (limit api, node node-1)"},
		{429, `{"allowed":false,"burst":20,"retry_after_ms":1000,"limit":"api","degraded":true,"node":"node-1"}`, 1,
			"denied, by the failure policy, again in 1s (limit api, node node-1)"},
	} {
		n := &fakeNode{status: c.status, body: c.body + "\n"}
		addr := n.start(t)
		if code, out, errs := runAt(t, addr, "--addr", "check", "k"); code != c.code || out != c.want+"\n" || errs != "" {
			t.Errorf("exit code %d, output %q, errors %q, want %d and %q", code, out, errs, c.code, c.want)
		}
		if code, out, errs := runAt(t, addr, "--addr", "check", "k", "-o", "json"); code != c.code || out != c.body+"\n" || errs != "" {
			t.Errorf("JSON: exit code %d, output %q, errors %q, want %d and %q", code, out, errs, c.code, c.body)
		}
	}
}

func TestCheckSends(t *testing.T) {
	n := &fakeNode{status: 200, body: `{"allowed":true}`}
	addr := n.start(t)
	for _, c := range []struct {
		args []string
		want map[string]any
	}{
		{[]string{"user:1"}, map[string]any{"key": "user:1", "cost": 1.}},
		{[]string{`<"ü"> & co`, "--limit", "api", "--cost=-3"}, map[string]any{"key": `<"ü"> & co`, "limit": "api", "cost": -3.}},
		{[]string{"--cost", "0", "--", "--limit"}, map[string]any{"key": "--limit", "cost": 0.}},
		{[]string{""}, map[string]any{"key": "", "cost": 1.}},
	} {
		args := append([]string{"check", "--addr", addr}, c.args...)
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 0 {
			t.Errorf("%q: exit code %d", args, code)
		}
		body, found := strings.CutPrefix(n.got, "POST /v1/check ")
		var got map[string]any
		if err := json.Unmarshal([]byte(body), &got); !found || err != nil || n.kind != "application/json" || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: the node got %q of type %q, want %v", args, n.got, n.kind, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   string // "" is any that names the status
	}{
		{404, `{"error":{"code":"unknown_limit","message":"limit \"apo\" is not defined"}}`, `unknown_limit: limit "apo" is not defined`},
		{403, `{"error":{"code":"permission_denied","message":"no"}}`, `permission_denied: no`},
		{500, `boom`, ""},
		{200, `{}`, ""},
		{200, `{"members":null,"allowed":null}`, ""},
		{200, `[]`, ""},
		{200, ``, ""},
		{301, ``, ""},
		{502, "<html>\n" + strings.Repeat("x", 1<<16), ""},
	} {
		addr := (&fakeNode{status: c.status, body: c.body}).start(t)
		for _, cmd := range []struct {
			code int
			flag string
			args []string
		}{{2, "--addr", []string{"check", "k"}}, {1, "--admin", []string{"members"}}, {1, "--admin", []string{"members", "-o", "json"}}, {1, "--admin", []string{"ring"}}} {
			code, out, errs := runAt(t, addr, cmd.flag, cmd.args...)
			if code != cmd.code || out != "" || strings.Count(errs, "\n") != 1 || len(errs) > 500 || c.want != "" && errs != "tokenring: "+c.want+"\n" {
				t.Errorf("%q at %d %.60q: exit code %d, output %q, errors %q", cmd.args, c.status, c.body, code, out, errs)
			}
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	addr := nobody(t)
	for _, cmd := range []struct {
		code int
		flag string
		args []string
	}{{2, "--addr", []string{"check", "k"}}, {1, "--admin", []string{"members"}}, {1, "--admin", []string{"ring"}}, {1, "--addr", []string{"health"}}} {
		code, out, errs := runAt(t, addr, cmd.flag, cmd.args...)
		if code != cmd.code || out != "" || !strings.Contains(errs, addr) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit code %d, output %q, errors %q", cmd.args, code, out, errs)
		}
	}
}

func TestHealth(t *testing.T) {
	for _, c := range []struct {
		status       int
		body         string
		code         int
		stdout, errs string
	}{
		{200, "ok\n", 0, "ready\n", ""},
		{503, "joining the cluster\n", 1, "", "tokenring: not ready: joining the cluster\n"},
		{503, "", 1, "", "tokenring: not ready: Service Unavailable\n"},
		{404, "", 1, "", "tokenring: not ready: Not Found\n"},
	} {
		n := &fakeNode{status: c.status, body: c.body}
		code, out, errs := runAt(t, n.start(t), "--addr", "health")
		if code != c.code || out != c.stdout || errs != c.errs {
			t.Errorf("%d %q: exit code %d, output %q, errors %q", c.status, c.body, code, out, errs)
		}
		if n.got != "GET /readyz " {
			t.Errorf("the node got %q", n.got)
		}
	}
}

func TestMembers(t *testing.T) {
	const body = `{"members":[{"id":"node-1","state":"active","addr":"127.0.0.1:7947","partitions":1365,"self":true},` +
		`{"id":"a-longer-name","state":"suspect","addr":"127.0.0.1:7957","partitions":0,"self":false}]}`
	n := &fakeNode{status: 200, body: body}
	addr := n.start(t)
	const table = "" +
		"ID             STATE    ADDR            PARTITIONS  SELF\n" +
		"node-1         active   127.0.0.1:7947  1365        self\n" +
		"a-longer-name  suspect  127.0.0.1:7957  0           \n"
	if code, out, errs := runAt(t, addr, "--admin", "members"); code != 0 || out != table || errs != "" {
		t.Errorf("exit code %d, output\n%s\nerrors %q, want\n%s", code, out, errs, table)
	}
	if code, out, errs := runAt(t, addr, "--admin", "members", "--output=json"); code != 0 || out != body+"\n" || errs != "" {
		t.Errorf("exit code %d, output %s, errors %q", code, out, errs)
	}
	if n.got != "GET /v1/members " {
		t.Errorf("the node got %q", n.got)
	}
}

func TestRing(t *testing.T) {
	const some = `{"node":"node-1","ready":false,"not_ready":"waiting for 1 of 2 partitions","partitions":[` +
		`{"partition":0,"owner":"node-1","holder":"node-1","epoch":4,"role":"holding","heir":"node-2","copied":true,"copy":"none","buckets":7},` +
		`{"partition":1,"owner":"node-2","holder":"node-2","epoch":2,"role":"none","heir":"","copied":false,"copy":"complete","buckets":2},` +
		`{"partition":2,"owner":"node-1","holder":"","epoch":0,"role":"claiming","heir":"","copied":false,"copy":"partial","buckets":1},` +
		`{"partition":3,"owner":"node-2","holder":"node-1","epoch":3,"role":"frozen","heir":"node-2","copied":true,"copy":"none","buckets":1}]}`
	const summary = "node-1 is not ready: waiting for 1 of 2 partitions\n" +
		"  holding 1 partitions with 8 buckets, 2 copied to their heir\n" +
		"  copies of 1 partitions with 3 buckets, and 1 incomplete\n" +
		"  claiming 1, frozen 1, paused 0\n\n" +
		"ID        PLACED  HOLDS\n" +
		"node-1    2       2\n" +
		"node-2    2       1\n" +
		"(nobody)  0       1\n"
	const list = "" +
		"PARTITION  OWNER   HOLDER  EPOCH  ROLE      HEIR    COPIED  COPY      BUCKETS\n" +
		"0          node-1  node-1  4      holding   node-2  true    none      7\n" +
		"1          node-2  node-2  2      none              false   complete  2\n" +
		"2          node-1          0      claiming          false   partial   1\n" +
		"3          node-2  node-1  3      frozen    node-2  true    none      1\n"
	for _, c := range []struct {
		body string
		args []string
		want string
	}{
		{some, nil, summary},
		{some, []string{"--partitions"}, list},
		{some, []string{"-o", "json"}, some + "\n"},
		{`{"node":"a","ready":true,"partitions":[]}`, nil, "a is ready\nRedis decides: no node holds a partition\n"},
	} {
		n := &fakeNode{status: 200, body: c.body}
		if code, out, errs := runAt(t, n.start(t), "--admin", append([]string{"ring"}, c.args...)...); code != 0 || out != c.want || errs != "" {
			t.Errorf("%q: exit code %d, output\n%s\nerrors %q, want\n%s", c.args, code, out, errs, c.want)
		}
		if n.got != "GET /v1/ring " {
			t.Errorf("the node got %q", n.got)
		}
	}
}

func TestVersion(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "v1.2.3"
	var out bytes.Buffer
	if code := run(t.Context(), []string{"version"}, &out, io.Discard); code != 0 || !strings.HasPrefix(out.String(), "tokenring v1.2.3, commit ") ||
		!strings.HasSuffix(out.String(), buildInfo().Go+"\n") {
		t.Errorf("exit code %d, output %q", code, &out)
	}
	version = ""
	if b := buildInfo(); b.Version == "" || b.Commit == "" || !strings.HasPrefix(b.Go, "go") {
		t.Errorf("build info %+v", b)
	}
}

// What cannot be asked for is refused before anything is asked.
func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--callers 0", "--callers: 0 is out of range: want 1 to 10000"},
		{"--keys 10000001", "--keys: 10000001 is out of range: want 1 to 10000000"},
		{"--batch 1001", "--batch: 1001 is out of range: want 1 to 1000"},
		{"--duration 0s", "--duration must be above zero and --warmup not below"},
		{"--warmup -1s", "--duration must be above zero and --warmup not below"},
		{"--protocol udp", `--protocol: "udp" is unknown: want http or grpc or client`},
		{"--spread even", `--spread: "even" is unknown: want uniform or zipf or hot`},
		{"--addr 127.0.0.1", `"127.0.0.1" is not an address`},
		{"hot", `unexpected argument "hot": want flags alone`},
	} {
		code, out, errs := runAt(t, nobody(t), "--addr", append([]string{"bench"}, strings.Fields(c.args)...)...)
		if code != 1 || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("bench %s: exit code %d, printed %q and %q, want %q", c.args, code, out, errs, c.want)
		}
	}
	if code, _, errs := runAt(t, nobody(t), "--addr", "bench"); code != 1 || !strings.Contains(errs, "refused") {
		t.Errorf("nobody there: exit code %d, %q", code, errs)
	}
}
