package cluster

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
)

// makeInitrd writes a node's initrd: the common initrd, followed by an archive with this node's files. The image's
// first program copies the content of /files into the root file system.
func makeInitrd(to, base string, files map[string][]byte) error {
	content, err := os.ReadFile(base)
	if err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	all := map[string]cpioEntry{}
	err = fs.WalkDir(nodeFiles, "node", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(nodeFiles, name)
		all[path.Base(name)] = cpioEntry{mode: 0o100755, content: content}
		return err
	})
	if err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	for name, content := range files {
		all[name] = cpioEntry{mode: 0o100600, content: content}
	}
	buf := bytes.NewBuffer(content)
	buf.Write(make([]byte, (4-buf.Len()%4)%4)) // archives begin at multiples of four bytes
	writeCpio(buf, "files", cpioEntry{mode: 0o040755})
	writeCpio(buf, "files/seed", cpioEntry{mode: 0o040755})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		writeCpio(buf, "files/seed/"+name, all[name])
	}
	writeCpio(buf, "TRAILER!!!", cpioEntry{})
	if err := os.WriteFile(to, buf.Bytes(), 0o600); err != nil {
		return fmt.Errorf("make initrd: %w", err)
	}
	return nil
}

type cpioEntry struct {
	mode    uint32
	content []byte
}

// writeCpio appends an entry in the format that the kernel reads ("newc").
func writeCpio(buf *bytes.Buffer, name string, e cpioEntry) {
	begin := buf.Len()
	pad := func() { buf.Write(make([]byte, (4-(buf.Len()-begin)%4)%4)) }
	fields := []int{
		0, int(e.mode), 0, 0, 1, 0, // inode, mode, uid, gid, links, time
		len(e.content), 0, 0, 0, 0, // size, device, device of a device node
		len(name) + 1, 0, // name with its NUL, checksum
	}
	buf.WriteString("070701")
	for _, field := range fields {
		fmt.Fprintf(buf, "%08X", field)
	}
	buf.WriteString(name + "\x00")
	pad()
	buf.Write(e.content)
	pad()
}
