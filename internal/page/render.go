package page

import (
	"embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed assets
var assets embed.FS

// Everything that comes from the cluster passes through html/template, which escapes it for
// where it stands. No type of the views is one that it trusts.
var templates = template.Must(template.ParseFS(assets, "assets/*.html"))

// A whole page.
type whole struct {
	Title string
	Query query
	Live  live
	Found *found  // nil where nothing was searched
	Plan  *whatIf // nil where nothing was asked
	Time  string
}

func render(to io.Writer, name string, view any) error {
	if err := templates.ExecuteTemplate(to, name, view); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	return nil
}
