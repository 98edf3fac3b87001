package nfs

import (
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Export is an export of an NFS server, and its mount point in this process.
type Export struct {
	// Server is a host name or an address, as in StorageClasses and PersistentVolumes:
	// IPv6 without brackets.
	Server string
	// Path is the exported directory on the server: absolute, without "..".
	Path string
	// Dir is the mount point in this process: absolute, without "..".
	Dir string
}

// String formats the export for mount(8).
func (e Export) String() string {
	if strings.Contains(e.Server, ":") {
		return "[" + e.Server + "]:" + e.Path
	}
	return e.Server + ":" + e.Path
}

// remote returns the path of one of the export's directories on the server.
func (e Export) remote(directory string) string { return path.Join(e.Path, directory) }

// ParseExport parses SERVER:/PATH=/DIR. The error is a *volume.FieldError.
func ParseExport(s string) (Export, error) {
	const field = "--export"
	remote, dir, found := cutLast(s, "=/")
	server, exported, colon := strings.Cut(remote, ":/")
	if !found || !colon {
		return Export{}, &volume.FieldError{Field: field, Value: s, Reason: "is not of the form SERVER:/PATH=/DIR, such as nfs.example.org:/srv/flexlvm=/exports/1"}
	}
	e := Export{Path: "/" + exported, Dir: "/" + dir}
	var err error
	if e.Server, err = parseServer(field, server); err != nil {
		return Export{}, err
	}
	for _, p := range []string{e.Path, e.Dir} {
		if err := checkPath(field, p); err != nil {
			return Export{}, err
		}
	}
	return e, nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	at := strings.LastIndex(s, separator)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(separator):], true
}

// parseServer accepts an IPv6 address with or without brackets.
func parseServer(field, s string) (string, error) {
	bare := withoutBrackets(s)
	if _, err := netip.ParseAddr(bare); err == nil {
		return bare, nil
	}
	good := s != "" && len(s) <= 253 && s[0] != '-' && s[0] != '.'
	for _, c := range s {
		good = good && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.')
	}
	if !good {
		return "", &volume.FieldError{Field: field, Value: s, Reason: "is neither a host name nor an address"}
	}
	return s, nil
}

func withoutBrackets(s string) string {
	inner, opened := strings.CutPrefix(s, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if opened && closed {
		return inner
	}
	return s
}

// checkPath rejects paths that do not literally name their target.
func checkPath(field, s string) error {
	if !path.IsAbs(s) || path.Clean(s) != s {
		return &volume.FieldError{Field: field, Value: s, Reason: fmt.Sprintf("must be an absolute path without .., // and / at the end; write %s", path.Clean("/"+s))}
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f {
			return &volume.FieldError{Field: field, Value: s, Reason: "holds a control character"}
		}
	}
	return nil
}

// Exports are all exports of a process.
type Exports []Export

// ParseExports parses the flags of a process, which name at least one export, and none twice. The error
// is a *volume.FieldError.
func ParseExports(flags []string) (Exports, error) {
	var out Exports
	for _, s := range flags {
		e, err := ParseExport(s)
		if err != nil {
			return nil, err
		}
		for _, other := range out {
			if other.String() == e.String() || other.Dir == e.Dir {
				return nil, &volume.FieldError{Field: "--export", Value: s, Reason: fmt.Sprintf("names the same export or the same directory as %s=%s", other, other.Dir)}
			}
		}
		out = append(out, e)
	}
	if len(out) == 0 {
		return nil, &volume.FieldError{Field: "--export", Reason: "is needed at least once: SERVER:/PATH=/DIR"}
	}
	return out, nil
}

// find returns the export with this server and path.
func (all Exports) find(server, exported string) (Export, bool) {
	for _, e := range all {
		if e.Server == server && e.Path == exported {
			return e, true
		}
	}
	return Export{}, false
}

// String lists all exports for messages.
func (all Exports) String() string {
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.String()
	}
	return strings.Join(names, ", ")
}
