package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/redisstore"
)

const (
	configName = "config"
	envPrefix  = "TOKENRING_"
)

// given is a value as somebody gave it, and what errors call it: a flag, a variable, or a
// field with its file and line.
type given struct{ value, origin string }

// values are what was given, by the names of the settings.
type values map[string]given

// load reads all settings, the first of flag, environment, file and default that is
// there, and the limits file.
func load(flags *pflag.FlagSet, environ []string, hostname func() (string, error)) (Settings, error) {
	all, err := collect(flags, environ)
	if err != nil {
		return Settings{}, err
	}
	var s Settings
	for _, set := range settings {
		g, ok := all[set.name]
		if !ok {
			g.value = set.value
		}
		if set.name == "id" && !ok {
			err = setHostname(&s.ID, hostname)
		} else if err = set.set(&s, g.value); err != nil {
			err = fmt.Errorf("%s: %w", g.origin, err)
		}
		if err != nil {
			return Settings{}, err
		}
	}
	if err := s.checkRedis(all); err != nil {
		return Settings{}, err
	}
	if err := s.loadLimits(all); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// collect returns what flags, environment and file give.
func collect(flags *pflag.FlagSet, environ []string) (values, error) {
	top := values{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			top[f.Name] = given{f.Value.String(), "--" + f.Name}
		}
	})
	env, err := fromEnvironment(environ)
	if err != nil {
		return nil, err
	}
	maps.Copy(env, top)
	config := env[configName]
	if config.value == "" {
		return env, nil
	}
	all, err := fromFile(config)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, env)
	return all, nil
}

// unprefixed are variables that work without the prefix, too.
var unprefixed = map[string]string{"REDIS_URL": "redis-url", "TRUST_CLIENT_ID": "trust-client-id"}

func fromEnvironment(environ []string) (values, error) {
	bare, prefixed := values{}, values{}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		flag := strings.ReplaceAll(strings.ToLower(rest), "_", "-")
		known := variable(flag) == name && (flag == configName || find(flag) != nil)
		switch {
		case value == "": // the same as none
		case unprefixed[name] != "":
			bare[unprefixed[name]] = given{value, name}
		case !ours:
		case known:
			prefixed[flag] = given{value, name}
		case !injected(name, value):
			return nil, fmt.Errorf("%s: unknown variable: want %s and a flag of serve in capitals, - as _", name, envPrefix)
		}
	}
	maps.Copy(bare, prefixed)
	return bare, nil
}

// variable is the name of a flag's variable.
func variable(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

var (
	serviceVariable = regexp.MustCompile(`^TOKENRING(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	servicePort     = regexp.MustCompile(`^TOKENRING(_[A-Z0-9_]+)?_PORT=(tcp|udp|sctp)://`)
)

// injected reports whether Kubernetes sets the variable in every container that runs
// beside a service called tokenring or tokenring-something.
func injected(name, value string) bool {
	return serviceVariable.MatchString(name) || servicePort.MatchString(name+"="+value)
}

func fromFile(config given) (values, error) {
	data, err := os.ReadFile(config.value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config.origin, err)
	}
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return values{}, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", config.value, err)
	}
	if err := d.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s:%d: a second document: want one alone", config.value, second.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", config.value, err)
	}
	return fromMapping(config.value, doc.Content[0])
}

func fromMapping(path string, root *yaml.Node) (values, error) {
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: is not a mapping: want flags of serve and their values", path, root.Line)
	}
	all := values{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key := root.Content[i]
		origin := fmt.Sprintf("%s:%d: %s", path, key.Line, key.Value)
		set := find(key.Value)
		if set == nil {
			return nil, fmt.Errorf("%s:%d: %q is not a field: want a flag of serve without its dashes", path, key.Line, key.Value)
		}
		if _, again := all[set.name]; again {
			return nil, fmt.Errorf("%s: is given twice", origin)
		}
		value, err := fromNode(root.Content[i+1], set.list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", origin, err)
		}
		all[set.name] = given{value, origin}
	}
	return all, nil
}

// fromNode returns a value of the file as a flag would have it.
func fromNode(n *yaml.Node, list bool) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null":
		return "", errors.New("has no value: leave the field out for the default")
	case n.Kind == yaml.ScalarNode:
		return n.Value, nil
	case !list:
		return "", errors.New("is not a single value")
	case n.Kind != yaml.SequenceNode:
		return "", errors.New("is not a list")
	}
	var parts []string
	for _, e := range n.Content {
		v, err := fromNode(e, false)
		if err != nil {
			return "", fmt.Errorf("an entry %w", err)
		}
		parts = append(parts, v)
	}
	return strings.Join(parts, ","), nil
}

func setHostname(to *string, hostname func() (string, error)) error {
	name, err := hostname()
	if err != nil {
		return fmt.Errorf("--id: read host name: %w: give the node a name with --id", err)
	}
	if setID(to, name) != nil {
		return fmt.Errorf("--id: the host name %q does not fit: give the node a name with --id, %s", name, nameWanted)
	}
	return nil
}

// checkRedis makes sure that a Redis is there where one is needed.
func (s *Settings) checkRedis(all values) error {
	byFailure := s.OnFailure == limits.Redis
	switch {
	case s.Backend == backendRedis && s.RedisURL == "":
		return fmt.Errorf("%s: redis needs --redis-url", all["backend"].origin)
	case byFailure && s.Backend == backendRedis:
		return fmt.Errorf("%s: redis cannot stand in for --backend redis: want allow, deny or local", all["on-failure"].origin)
	case byFailure && s.RedisURL == "":
		return fmt.Errorf("%s: redis needs --redis-url", all["on-failure"].origin)
	}
	return nil
}

// loadLimits reads the limits file, if there is one.
func (s *Settings) loadLimits(all values) error {
	s.Limits = limits.Default(s.OnFailure)
	if s.LimitsFile == "" {
		return nil
	}
	data, err := os.ReadFile(s.LimitsFile)
	if err != nil {
		return fmt.Errorf("%s: %w", all["limits"].origin, err)
	}
	s.Limits, err = limits.ParseFor(data, s.OnFailure, s.checkRule)
	if fe, ok := errors.AsType[*limits.FileError](err); ok {
		fe.File = s.LimitsFile
	}
	return err
}

// checkRule makes sure that a rule can be kept with the backends that there are.
func (s *Settings) checkRule(r *limits.Rule) error {
	inRedis := s.Backend == backendRedis
	if r.OnFailure == limits.Redis {
		switch {
		case inRedis:
			return errors.New("on_failure: redis cannot stand in for --backend redis: want allow, deny or local")
		case s.RedisURL == "":
			return errors.New("on_failure: redis needs --redis-url")
		}
	} else if !inRedis {
		return nil
	}
	if r.Unlimited {
		return nil
	}
	return redisstore.Supports(r.Limit)
}
