// Package browser shows the console as an operator meets it: in Chromium, in front of real processes.
//
// What may enter is what only a browser can tell: that pages change by themselves, that scripts do what they say, that
// the policy of the pages holds, that names stay text, and that everybody can use it. What a page says is tested in
// package web. setup.sh installs what the tests need; IOP_CHROMIUM names another browser, IOP_SCREENSHOTS a directory
// that the screenshots stay in.
package browser
