package members

import (
	"bytes"
	"context"
	"log"
	"log/slog"
)

// bridge lets memberlist, which marks levels by words in brackets, log through slog.
// What it calls information is detail to an operator of this program.
func bridge(l *slog.Logger) *log.Logger { return log.New(logWriter{l}, "", 0) }

type logWriter struct{ logger *slog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	text := bytes.TrimSpace(line)
	level := slog.LevelDebug
	if marker, rest, ok := bytes.Cut(text, []byte("] ")); ok {
		switch string(marker) {
		case "[WARN", "[ERR", "[ERROR":
			level = slog.LevelWarn
		}
		text = rest
	}
	w.logger.Log(context.Background(), level, string(bytes.TrimPrefix(text, []byte("memberlist: "))), "from", "memberlist")
	return len(line), nil
}
