package compose

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/wait"
)

const (
	root    = "../.."
	project = "tokenring-test"
	subnet  = "172.28.9"    // not the one of `make up`, which may be running
	gateway = subnet + ".1" // where connections from this machine come from

	redisProfile = "COMPOSE_PROFILES=redis"
)

const (
	pullLimit    = 2 * time.Minute
	standinLimit = 8 * time.Minute
	buildLimit   = 8 * time.Minute
	upLimit      = 2 * time.Minute
	askLimit     = 20 * time.Second // for what the engine answers at once
	waitLimit    = time.Minute
)

// command runs a program at the top of the repository and returns what it printed.
func command(ctx context.Context, limit time.Duration, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Dir = root
	c.Env = append(os.Environ(), env...)
	c.WaitDelay = time.Second
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.String(), fmt.Errorf("run %s: %w\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// docker runs a command that the engine answers at once.
func docker(tb testing.TB, args ...string) string {
	tb.Helper()
	out, err := command(tb.Context(), askLimit, nil, append([]string{"docker"}, args...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// needEngine skips the test where no Docker engine answers, but never in CI.
func needEngine(t *testing.T) []string {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("CI") == "true" {
		skip = t.Fatalf
	}
	if _, err := command(t.Context(), askLimit, nil, "docker", "version"); err != nil {
		skip("no Docker engine answers: %v", err)
	}
	for _, tool := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if _, err := command(t.Context(), askLimit, nil, append(tool, "version")...); err == nil {
			return tool
		}
	}
	skip("neither docker compose nor docker-compose is installed")
	return nil
}

// foreign matches the images that are not built from this repository.
var foreign = regexp.MustCompile(`(?m)^(?:FROM| +image:) +([a-z]+:\S+)`)

// needImages gets the images that Dockerfile and docker-compose.yml name, or stand-ins.
func needImages(t *testing.T) {
	t.Helper()
	var missing []string
	pull := true
	for _, file := range []string{"Dockerfile", "docker-compose.yml"} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range foreign.FindAllSubmatch(data, -1) {
			image := string(m[1])
			if _, err := command(t.Context(), askLimit, nil, "docker", "image", "inspect", image); err == nil {
				continue
			}
			if pull {
				_, err := command(t.Context(), pullLimit, nil, "docker", "pull", image)
				if err == nil {
					continue
				}
				t.Logf("no image can be pulled: %v", err)
				pull = false
			}
			missing = append(missing, image)
		}
	}
	if len(missing) == 0 {
		return
	}
	out, err := command(t.Context(), standinLimit, nil, append([]string{"test/compose/standins.sh"}, missing...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
}

// A deployment is what docker-compose.yml describes, under a project name and on ports
// of its own.
type deployment struct {
	tool []string
	env  []string
}

// newDeployment builds the image and takes down what an earlier test left behind.
func newDeployment(t *testing.T, tool []string, env ...string) *deployment {
	t.Helper()
	d := &deployment{tool: tool, env: append(env, "SUBNET="+subnet)}
	for _, name := range []string{"GOPROXY", "GOSUMDB"} {
		value, err := command(t.Context(), askLimit, nil, "go", "env", name)
		if err != nil {
			t.Fatal(err)
		}
		d.env = append(d.env, name+"="+value)
	}
	if err := d.down(t.Context()); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	d.run(t, buildLimit, "build")
	t.Logf("image built in %v", time.Since(started).Round(time.Second))
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx := context.Background()
		if t.Failed() {
			logs, err := d.compose(ctx, askLimit, "logs", "--no-color", "--tail", "100")
			t.Logf("%s (error: %v)", logs, err)
		}
		if err := d.down(ctx); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (d *deployment) compose(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	all := slices.Concat(d.tool, []string{"--project-name", project}, args)
	return command(ctx, limit, d.env, all...)
}

func (d *deployment) run(tb testing.TB, limit time.Duration, args ...string) string {
	tb.Helper()
	out, err := d.compose(tb.Context(), limit, args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func (d *deployment) down(ctx context.Context) error {
	all := &deployment{tool: d.tool, env: append(slices.Clip(d.env), redisProfile)}
	_, err := all.compose(ctx, upLimit, "down", "--volumes", "--remove-orphans", "--timeout", "5")
	return err
}

// container returns the id of a service's container, which has to be running.
func (d *deployment) container(tb testing.TB, service string) string {
	tb.Helper()
	id := d.run(tb, askLimit, "ps", "-q", service)
	if id == "" {
		tb.Fatalf("%s has no container", service)
	}
	return id
}

// waitHealthy waits until the engine calls all nodes healthy, which says that they are
// ready and that the image's health check works.
func (d *deployment) waitHealthy(t *testing.T) {
	t.Helper()
	for _, node := range nodes {
		id := d.container(t, node)
		wait.For(t, waitLimit, node+" to be healthy", func() bool {
			return docker(t, "inspect", "--format", "{{.State.Health.Status}}", id) == "healthy"
		})
	}
}
