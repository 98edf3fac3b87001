package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// process creates a process of a user in the namespaces of process 1, except for the one of the kind foreign.
func (p *patient) process(t *testing.T, pid, comm, cmdline, uid, foreign string) {
	t.Helper()
	p.write(t, "proc/"+pid+"/comm", comm+"\n")
	p.write(t, "proc/"+pid+"/cmdline", cmdline)
	p.write(t, "proc/"+pid+"/status", "Name:\t"+comm+"\nUid:\t0\t"+uid+"\t0\t0\nGid:\t0\t0\t0\t0\n")
	require.NoError(t, os.Mkdir(filepath.Join(p.root, "proc", pid, "ns"), 0o755))
	for _, kind := range []string{"pid", "user"} {
		number := "1"
		if kind == foreign {
			number = "2"
		}
		require.NoError(t, os.Symlink(kind+":["+number+"]", filepath.Join(p.root, "proc", pid, "ns", kind)))
	}
}

func pluginDirFinding(findings []Finding) Finding {
	for _, f := range findings {
		if f.Check == "plugin directory" {
			return f
		}
	}
	return Finding{}
}

// A pod can run a process named kubelet. Its command line chooses neither what is opened as root nor what is reported.
func TestKubeletOfAPod(t *testing.T) {
	for name, who := range map[string]struct{ uid, foreign string }{
		"another user":             {"1000", ""},
		"root of a container":      {"0", "pid"},
		"root of a user namespace": {"0", "user"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			p.process(t, "12", "kubelet", "kubelet\x00--config=/pipe\x00", who.uid, who.foreign)
			p.process(t, "13", "kubelet", "kubelet\x00--volume-plugin-dir=/opt/evil\x00", who.uid, who.foreign)
			require.NoError(t, unix.Mkfifo(filepath.Join(p.root, "pipe"), 0o600)) // opening it for reading would block
			found := pluginDirFinding(p.examine())
			require.Equal(t, OK, found.Level, "%+v", found)
			require.Contains(t, found.Detail, "as kubelet's")

			require.NoError(t, os.RemoveAll(filepath.Join(p.root, "proc/77")))
			found = pluginDirFinding(p.examine())
			require.Equal(t, Warn, found.Level)
			require.Contains(t, found.Detail, "no kubelet runs here")
		})
	}
}

// A kernel without user namespaces has no file for them.
func TestKubeletWithoutUserNamespaces(t *testing.T) {
	p := healthy(t)
	for _, pid := range []string{"1", "77"} {
		require.NoError(t, os.Remove(filepath.Join(p.root, "proc", pid, "ns/user")))
	}
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "as kubelet's")
	for _, pid := range []string{"1", "77"} {
		require.NoError(t, os.Remove(filepath.Join(p.root, "proc", pid, "ns/pid")))
	}
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "no kubelet runs here")
}

// Even of the real kubelet's command line, only regular files of limited size are read.
func TestFilesOfKubelet(t *testing.T) {
	p := healthy(t)
	p.write(t, "proc/77/cmdline", "kubelet\x00--config=/config\x00")
	config := filepath.Join(p.root, "config")
	require.NoError(t, unix.Mkfifo(config, 0o600))
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "name no other")
	require.NoError(t, os.Remove(config))
	p.write(t, "config", "volumePluginDir: /opt/exec\n"+strings.Repeat("#", maxText))
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "name no other")
	require.NoError(t, os.Remove(config))
	require.NoError(t, os.Symlink("/dev/zero", config))
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "name no other")

	_, err := readFile(os.OpenFile, "/dev/null")
	require.ErrorContains(t, err, "not a regular file")

	p.write(t, "proc/77/cmdline", "kubelet\x00"+strings.Repeat("--v=2\x00", maxText/6+1))
	require.Contains(t, pluginDirFinding(p.examine()).Detail, "no kubelet runs here")
}

// The last file that has the setting counts, in the order in which kubelet merges them, and the command line over all.
func TestDropInsOfKubelet(t *testing.T) {
	p := healthy(t)
	dir := p.cfg.Place.PluginDir()
	expect := func(level Level, detail string) {
		t.Helper()
		found := pluginDirFinding(p.examine())
		require.Equal(t, level, found.Level, "%+v", found)
		require.Contains(t, found.Detail, detail)
	}
	p.write(t, "proc/77/cmdline", "kubelet\x00--config=/config\x00--config-dir\x00/config.d\x00")
	p.write(t, "config", "volumePluginDir: "+dir+"\n")
	expect(OK, "as kubelet's") // no directory
	p.write(t, "config.d/10.conf", "kind: KubeletConfiguration\nvolumePluginDir: /opt/ten\n")
	expect(Fail, `kubelet looks in "/opt/ten"`)
	p.write(t, "config.d/05.conf", "volumePluginDir: "+dir+"\n")
	p.write(t, "config.d/99.yaml", "volumePluginDir: "+dir+"\n")
	p.write(t, "config.d/20.conf", "maxPods: 5\n")
	expect(Fail, `kubelet looks in "/opt/ten"`)
	p.write(t, "config.d/10.d/a.conf", `{"volumePluginDir": "/opt/below"}`)
	expect(Fail, `kubelet looks in "/opt/below"`)
	p.write(t, "config.d/30.conf", "volumePluginDir: "+dir+"\n")
	require.NoError(t, unix.Mkfifo(filepath.Join(p.root, "config.d/40.conf"), 0o600)) // opening it for reading would block
	expect(OK, "as kubelet's")
	p.write(t, "config.d/50.conf", "volumePluginDir: \"\"\n")
	expect(OK, "name no other")

	p.write(t, "proc/77/cmdline", "kubelet\x00--config-dir=/config.d\x00--volume-plugin-dir=/opt/flag\x00")
	expect(Fail, `kubelet looks in "/opt/flag"`)
}

// What a finding says of kubelet is safe in a terminal, and its command in a shell.
func TestFindingsAreInert(t *testing.T) {
	p := healthy(t)
	p.write(t, "proc/77/cmdline", "kubelet\x00--volume-plugin-dir=/opt/$(reboot)\x1b[2J\x00")
	found := pluginDirFinding(p.examine())
	require.Equal(t, Fail, found.Level)
	require.Contains(t, found.Detail, `kubelet looks in "/opt/$(reboot)\x1b[2J"`)
	require.Contains(t, found.Do, "`flexlvm install --plugin-dir DIR`")
}

func TestValuesOfALowerLevel(t *testing.T) {
	for _, text := range []string{"other:\n  volumePluginDir: /deeper\n", `{"other": {"volumePluginDir": "/deeper"}}`, `{"volumePluginDir": 7}`, "- volumePluginDir: /x\n", ""} {
		value, _ := topLevelValue(text, "volumePluginDir")
		require.Empty(t, value, text)
	}
}
