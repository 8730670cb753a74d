package members

import (
	"bytes"
	"log"
	"log/slog"
)

// bridge lets memberlist log through slog. What it warns of, such as one lost packet, is
// detail to an operator of this program, who is told of members that come and go.
func bridge(l *slog.Logger) *log.Logger { return log.New(logWriter{l}, "", 0) }

type logWriter struct{ logger *slog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.logger.Debug(string(bytes.TrimSpace(line)))
	return len(line), nil
}
